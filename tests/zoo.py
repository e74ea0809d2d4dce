"What the ranks of the zoo's tests run"
import random, traceback
from pathlib import Path

from torch import distributed as dist

from equal import CONFIGS, DEPTHS, assert_replicas_equal, check_random, compare, draw, inputs, micro_batches, optimizer_of, reference, spec_of, train
from galvatron.checkpoint.distributed import Checkpointer
from galvatron.model_spec import ModelSpec
from galvatron.plan import LayerStrategy, Plan, RunOptions, VocabStrategy
from galvatron.runtime.schedule import Pipeline
from galvatron.runtime.stage import StageModel

def check_zoo(kinds, count, folder):
    "For each family the errors of random plans, and those of a run that a checkpoint carries from one plan to another"
    out = {}
    if 'swin' in kinds: stochastic_depth()
    for kind in kinds:
        out[kind] = check_random(dist.get_world_size(), count, f'zoo {kind}', [kind])
        try: out[kind]['resumed'] = dict(errors=resumed(kind, Path(folder)/kind))
        except Exception: out[kind]['resumed'] = traceback.format_exc()
        if isinstance(out[kind]['resumed'], str): break
    return out

def resumed(kind, folder):
    "Two steps under one plan, a save, and the third under another, beside three on one process"
    rng, plans = random.Random(kind), []
    while len(plans)<2 or plans[0][1]==plans[1][1]:
        case = draw(dist.get_world_size(), rng, [kind])
        if case[1].n_layers==4: plans = [*plans[:1], case]
    (_,one,options), (_,two,others) = plans
    truth = reference(kind, 24)
    model = StageModel(spec_of(kind), one, options)
    optimizer = optimizer_of(model)
    before = compare(train(model, range(2), optimizer), truth[:2])
    Checkpointer(folder, model, optimizer).save(2)
    again = StageModel(spec_of(kind), two, others, seed=5)
    optimizer = optimizer_of(again)
    Checkpointer(folder, again, optimizer).load()
    after = compare(train(again, [2], optimizer), truth[2:])
    return {k: before[k]+after[k] for k in before} # not the larger one, which might hide a NaN

def stochastic_depth():
    "Whole branches of a Swin are dropped for the same samples on all ranks that share them, again when recomputing, and not in evaluation"
    spec, losses = ModelSpec.from_hf(dict(CONFIGS['swin'], depths=DEPTHS[4], drop_path_rate=.9, hidden_dropout_prob=.1), seq=None), {}
    for recompute in False, True:
        plan = Plan(tuple(LayerStrategy(k, recompute=recompute) for k in (4, 2, 4, 2)), VocabStrategy(2), chunks=2, global_bsz=8)
        model = StageModel(spec, plan, RunOptions('fp64'))
        losses[recompute] = [l for l,*_ in train(model, range(2))], Pipeline(model).evaluate(micro_batches(model, inputs(spec, 0, 8))).item()
        assert_replicas_equal(model)
    (a,ea),(b,eb) = losses.values()
    still = StageModel(ModelSpec.from_hf(dict(CONFIGS['swin'], depths=DEPTHS[4])), plan, RunOptions('fp64'))
    assert all(abs(x-y)<1e-12*x for x,y in zip(a, b)) and abs(ea-eb)<1e-12*ea
    assert abs(a[0]-next(train(still))[0])>1e-3
