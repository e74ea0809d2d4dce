"What the search emits, the runtime trains: a step of twenty plans of random searches on four processes, each against one process"
import random

from equal import assert_equal, check_all, spec_of
from galvatron.plan import RunOptions
from galvatron.profile.files import HardwareProfile, ModelProfile
from galvatron.runtime.launch import run_ranks
from galvatron.search.engine import Engine, search
from galvatron.search.space import SearchArgs

WORLD, COUNT, TOLERANCE = 4, 20, 1e-11

def draw(rng):
    "A random search: (kind, plan, options), or None where it finds nothing"
    kind, sp = rng.choice(['llama', 'gpt', 'qwen3']), rng.random()<0.5
    spec = spec_of(kind)
    hardware, profile = HardwareProfile.analytic('a100', 1, WORLD), ModelProfile.analytic(spec, 'a100', 'fp32')
    space = rng.choice(['tp', 'tp+sp', 'sp'])
    off = {f'disable_{o}': 1 for o in ('dp', 'pp', 'sdp', 'ckpt') if rng.random()<0.25}
    args = SearchArgs(num_gpus_per_node=WORLD, settle_bsz=rng.choice([8, 12]), settle_chunk=rng.choice([-1, 2, 4]), sp_space=space, sequence_parallel=sp, mixed_precision='fp32', default_dp_type=rng.choice(['ddp', 'zero2']),
                      async_grad_reduce=rng.random()<0.7, pipeline_type=rng.choice([None, 'gpipe', 'pipedream_flush']), fine_grained_mode=int(rng.random()<0.8), **off,
                      pin=[rng.choice([f'1:width={rng.choice([1, 2, 4])}', '0-1:ckpt=1', '3:width=4,ckpt=0'])] if rng.random()<0.5 and not off else [])
    if off.get('disable_dp') and off.get('disable_sdp'): return None
    least, plan = Engine(spec, hardware, profile, args).leanest()
    if plan is None: return None
    args.memory_constraint = (least+rng.choice([0.001, 0.01, 0.05, 1]))/1024
    found = search(spec, hardware, profile, args).plan
    return found and (kind, found, RunOptions('fp64', sequence_parallel=sp, async_grad_reduce=args.async_grad_reduce))

def test_emitted_plans_train():
    rng, cases = random.Random(0), {}
    while len(cases) < COUNT:
        case = draw(rng)
        if case: cases.setdefault(f'{case[0]}: {case[1].text(WORLD)}, {case[1].pipeline_type} {case[1].chunks}, {case[1].vocab}, {case[2]}', case)
    assert len({p.pp_deg for _, p, _ in cases.values()}) > 1 and len({s for _, p, _ in cases.values() for s in p.layers}) > 8
    assert_equal(run_ranks(check_all, WORLD, [(name, *case) for name, case in cases.items()], steps=1, timeout=600, backend='gloo'), cases, TOLERANCE)
