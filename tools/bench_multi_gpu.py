"""Several GPUs of one host in one command: profiles, correctness over NCCL, speed and memory of plans predicted before they run, other trainers, and a restart.

    python tools/bench_multi_gpu.py --out results --compile --trace                                        # all visible GPUs, ten minutes: on two H200 up to the budgets
    python tools/bench_multi_gpu.py --out results --compile --trace --parts trainers,curves,restart        # the rest, ten more
    python tools/bench_multi_gpu.py --out results --tiny     # the same code on gloo and the CPU, small shapes

Parts, most valuable first: profile (collectives), models (layers, widths shared by all GPUs), correctness, speed (plans of one model), budgets (what the search chooses under memory budgets, beside other plans), trainers
(torchtitan, whose wheels are on PYTHONPATH, in turn with ours), curves (losses in bf16), restart (another plan, a killed rank). Writes hardware_configs/, configs/ and multi_gpu.json into --out, where the parts of earlier calls
stay; a part that fails is recorded and the next one runs. Each part has the time it takes on two H200, or more in proportion where --minutes has more for all; it begins nothing new when that is over, and names what it left out.
"""
import argparse, json, os, re, signal, subprocess, sys, tempfile, time, traceback
from itertools import groupby
from pathlib import Path

from gpu_trace import shown, traced
from rivals import run as run_rival, stop
from steps import MIB, Case, free

FULL = dict(model_type='llama_hf', hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
            intermediate_size=8192, vocab_size=32000, seq=4096)
TINY = dict(FULL, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128, vocab_size=512, seq=64)
EXACT = dict(TINY, hidden_size=256, num_attention_heads=8, num_key_value_heads=4, intermediate_size=512, vocab_size=1003, seq=128)

PARTS = dict(profile=45, models=170, correctness=45, speed=80, budgets=200, trainers=330, curves=80, restart=60) # in this order; seconds that each takes on two H200
LAST = 60 # seconds for what has begun when the time is over

def share(args, parts, todo)->float:
    "Seconds for parts that come next: what they take, or more in proportion where more is left for all still to run"
    left, need = args.end-time.time(), sum(PARTS[p] for p in parts)
    return min(left, max(need, left*need/sum(PARTS[p] for p in todo[todo.index(parts[0]):])))

def named(text)->list:
    "Plans named by semicolons, or by commas where there is no semicolon: some names have a comma"
    return [t.strip() for t in text.split(';' if ';' in text else ',') if t.strip()]

def put(args, part, value):
    "A part's results to disk; those of other parts stay"
    file = Path(args.out)/'multi_gpu.json'
    old = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(old|{part: value}, indent=1))

def late(begin, args)->bool:
    "Whether this part's time is over; the same answer on all ranks"
    import torch, torch.distributed as dist
    from galvatron.runtime.groups import default_device
    t = torch.tensor(float(time.time()-begin>args.seconds), device=default_device())
    dist.all_reduce(t)
    return bool(t.item())

def make_spec(d, **more):
    from galvatron.model_spec import ModelSpec
    d = {**d, **more}
    kw = {k:v for k,v in d.items() if k not in ('model_type', 'num_hidden_layers', 'seq')}
    return ModelSpec.from_size(d['model_type'], None, d['num_hidden_layers'], d['seq'], **kw)

def speed_plans(n_layers, world):
    "name: (Plan, RunOptions arguments); the same 8 samples a step for all; micro-batches of at least a sample a GPU where data are divided"
    from galvatron.plan import LayerStrategy as L, Plan, VocabStrategy as V
    sp, n, c = dict(sequence_parallel=True), n_layers, max(1, min(4, 8//world))
    p = lambda layers, vocab=V(), **kw: Plan(tuple(layers), vocab, **{**dict(global_bsz=8, default_dp_type='zero2'), **kw})
    half = lambda a, b: [a]*(n//2) + [b]*(n-n//2)
    z3, z2, tp, ul = L(dp_type='zero3'), L(dp_type='zero2'), L(world, dp_type='zero2'), L(world, True, dp_type='zero2')
    pp = dict(pp_deg=world, default_dp_type='ddp', pipeline_type='pipedream_flush')
    return {
        'alone': (Plan((L(),)*n, global_bsz=8//world), {}),        # every GPU for itself: what communication is measured against
        'zero3': (p([z3]*n, V(embed_sdp=True)), {}),
        'tp-sp': (p([tp]*n, V(world)), sp),
        'pp-1f1b x8': (p([L()]*n, chunks=8, **pp), {}),
        'ulysses': (p([ul]*n, V(world, True)), {}),
        'zero2': (p([z2]*n), {}),
        'ddp': (p([L()]*n, default_dp_type='ddp'), {}),
        'tp': (p([tp]*n, V(world)), {}),
        'pp-1f1b x4': (p([L()]*n, chunks=4, **pp), {}),
        'half tp-sp, half zero3': (p(half(tp, z3), V(world)), sp),
        'zero3 recompute': (p([L(dp_type='zero3', recompute=True)]*n, V(embed_sdp=True)), {}),
        'alternating tp-sp, zero3': (p([tp, z3]*(n//2), V(world)), sp),
        f'zero2 x{c}': (p([z2]*n, chunks=c), {}),
        f'zero3 x{c}, no async': (p([z3]*n, V(embed_sdp=True), chunks=c), dict(async_grad_reduce=False)),
        'zero3, half recompute': (p(half(L(dp_type='zero3', recompute=True), z3), V(embed_sdp=True)), {}),
        'pp-gpipe x8': (p([L()]*n, chunks=8, **{**pp, 'pipeline_type':'gpipe'}), {}),
        'zero2, vtp': (p([z2]*n, V(world)), sp),
        'ulysses zero3 x2': (p([L(world, True, dp_type='zero3')]*n, V(world, True, True), chunks=2), {}),
    }

def deep(d, world): return dict(d, num_hidden_layers=max(d['num_hidden_layers'], world)) # a layer for each stage
def exact_bsz(world): return max(16, 2*world)

def exact_plans(world):
    "12 plans for correctness: name: (Plan, RunOptions arguments); a layer for each pipeline stage, and a sample for each rank in two micro-batches"
    from galvatron.plan import LayerStrategy as L, Plan, VocabStrategy as V
    sp, p = dict(sequence_parallel=True), lambda layers, vocab=V(), **kw: Plan(tuple(layers), vocab, global_bsz=exact_bsz(world), **kw)
    w, pp, n = world, dict(pp_deg=world), deep(EXACT, world)['num_hidden_layers']
    return { # those that mix the others first
        'mixed': (p(([L(w), L(dp_type='zero3'), L(w, True), L(recompute=True)]*n)[:n], V(w), chunks=2), sp), 'vtp': (p([L()]*n, V(w)), sp),
        'recompute, compile': (p(([L(recompute=True), L(w, recompute=True), L(), L()]*n)[:n]), dict(compile=True, **sp)),
        'ddp': (p([L()]*n), {}), 'zero2': (p([L(dp_type='zero2')]*n, default_dp_type='zero2', chunks=2), {}),
        'zero3': (p([L(dp_type='zero3')]*n, V(embed_sdp=True), chunks=2), dict(async_grad_reduce=False)),
        'tp': (p([L(w)]*n), {}), 'tp-sp': (p([L(w)]*n, V(w)), sp), 'ulysses': (p([L(w, True)]*n, V(w, True)), {}),
        'gpipe x1': (p([L()]*n, chunks=1, **pp), {}), 'gpipe x4': (p([L()]*n, chunks=4, **pp), {}),
        '1f1b x8': (p([L()]*n, chunks=8, pipeline_type='pipedream_flush', **pp), {}),
    }

def run_plan(spec, plan, options, steps, lr=1e-3, seed=0, place=None, trace=False):
    "Train `steps` steps on random tokens: losses, gradient norms, step times (ms) and peak memory of this rank, and where the time goes if asked"
    import torch
    from galvatron.runtime.optim import adamw, clip_grad_norm
    from galvatron.runtime.schedule import Pipeline
    from galvatron.runtime.stage import StageModel
    cuda = torch.cuda.is_available()
    left_mib = torch.cuda.memory_allocated()/MIB if cuda else 0.         # by an earlier plan: should be nothing
    model = StageModel(spec, plan, options, place)
    pipe, opt = Pipeline(model), adamw(model, lr=lr)
    tokens = torch.randint(0, spec.vocab, (plan.global_bsz, spec.seq+1), generator=torch.Generator().manual_seed(seed)).to(model.place.device)
    batches = [dict(tokens=tokens[list(r),:-1], labels=tokens[list(r),1:]) if len(r) else None for r in model.rows()]
    out = dict(loss=[], norm=[], ms=[])
    def step():
        loss, norm = pipe.step(batches), clip_grad_norm(model, 1., opt)
        opt.step(); opt.zero_grad()
        return loss, norm
    if cuda: torch.cuda.reset_peak_memory_stats()
    marks = [mark()]
    for i in range(steps):                                          # as the trainer does, nothing waits for the device within the loop
        out['loss'], out['norm'] = [f+[x] for f,x in zip((out['loss'], out['norm']), step())]
        marks.append(mark())
    if cuda: torch.cuda.synchronize()
    out.update(ms=[between(a, b) for a,b in zip(marks, marks[1:])], **{k:[x.item() for x in out[k]] for k in ('loss', 'norm')})
    if cuda:
        free_now, total = torch.cuda.mem_get_info()
        out.update(allocated=torch.cuda.max_memory_allocated()/MIB, reserved=torch.cuda.max_memory_reserved()/MIB, context=(total-free_now-torch.cuda.memory_reserved())/MIB, left=left_mib) # context: with communicators and the buffers of direct messages
    if trace: out['trace'] = traced(step)
    return out

def rest():
    "Give back what a plan held, its communicators too, so that the next one begins as in a process of its own"
    from galvatron.runtime.groups import close_groups
    free(); close_groups()

def mark():
    "A point in time: of the device's queue if there is a GPU"
    import torch
    if not torch.cuda.is_available(): return time.perf_counter()
    e = torch.cuda.Event(enable_timing=True)
    e.record()
    return e

def between(a, b)->float: # ms
    return (b-a)*1e3 if isinstance(a, float) else a.elapsed_time(b)

def correctness(args, world, rank):
    "Losses and norms of 3 steps under every plan against one process alone (fp32)"
    from galvatron.plan import LayerStrategy, Plan, RunOptions
    from galvatron.runtime.groups import Place, default_device
    spec, rows, start, names = make_spec(deep(EXACT, world)), {}, time.time(), named(args.plans)
    alone = Plan((LayerStrategy(),)*spec.n_layers, global_bsz=exact_bsz(world))
    ref = run_plan(spec, alone, RunOptions('fp32'), 3, place=Place.solo(default_device()))
    for name,(plan,kw) in exact_plans(world).items():
        if names and name not in names: continue
        if late(start, args): rows[name] = dict(skipped='out of time'); continue
        try:
            got = run_plan(spec, plan, RunOptions('fp32', **kw), 3)
            err = max(abs(a-b)/abs(b) for k in ('loss', 'norm') for a,b in zip(got[k], ref[k]))
            rows[name] = dict(error=err, ok=err<1e-5) | {f'{k}_mib': got[k] for k in ('context',) if k in got}
        except Exception: rows[name] = dict(error=traceback.format_exc()[-1500:], ok=False)
        if rank==0: print(f'  {name:22s} {rows[name]}', flush=True)
        rest()
    return rows

def curves(args, world, rank, save, old):
    "Losses in bf16 of the plans of `correctness`, step by step on one batch, beside those of one GPU alone, whole and in four micro-batches"
    from galvatron.plan import LayerStrategy, Plan, RunOptions
    from galvatron.runtime.groups import Place, default_device
    spec, steps, solo, start = make_spec(deep(EXACT, world)), 8 if args.tiny else 100, Place.solo(default_device()), time.time()
    rows = {n: r for n,r in old.items() if 'loss' in r}              # a call that ran out of time is taken up
    alone = {f'alone x{c}': (Plan((LayerStrategy(),)*spec.n_layers, global_bsz=exact_bsz(world), chunks=c), {}) for c in (1, 4)}
    for name,(plan,kw) in {**alone, **exact_plans(world)}.items():
        if name in rows: continue
        if late(start, args): rows[name] = dict(skipped='out of time'); continue
        try: rows[name] = dict(loss=run_plan(spec, plan, RunOptions('bf16', **kw), steps, place=solo if name in alone else None)['loss'])
        except Exception: rows[name] = dict(error=traceback.format_exc()[-1500:])
        first = rows['alone x1'].get('loss')
        if rank==0: print(f'  {name:22s}', rows[name].get('error') or f"{rows[name]['loss'][0]:.4f} to {rows[name]['loss'][-1]:.4f}, apart from alone by {max(abs(a/b-1) for a,b in zip(rows[name]['loss'], first)):.1e} at most", flush=True)
        rest(); save(rows)
    return rows

def speed(args, world, rank, save):
    "Step time, tokens/s, MFU and peak memory of the plans, each predicted first where profiles are there"
    import torch.distributed as dist
    from galvatron.plan import RunOptions
    from galvatron.runtime.groups import Place, default_device
    spec = make_spec(deep(TINY if args.tiny else FULL, world))
    steps, names, rows, start = (3 if args.tiny else args.steps), named(args.plans), {}, time.time()
    for name,(plan,kw) in speed_plans(spec.n_layers, world).items():
        if names and name not in names: continue
        if late(start, args): rows[name] = dict(skipped='out of time'); continue
        options = RunOptions('bf16', compile=args.compile, **kw)
        row = dict(predicted=predicted(spec, plan, options, args))
        try:
            got = run_plan(spec, plan, options, steps, trace=args.trace, place=Place.solo(default_device()) if name=='alone' else None)
            every = [None]*world
            dist.all_gather_object(every, got)
            ms, n = sorted(got['ms'][3:] or got['ms']), 1 if name=='alone' else world
            med = ms[len(ms)//2]
            row.update(ms=med, spread=(ms[-1]-ms[0])/med, first_ms=got['ms'][0], tokens_s_gpu=plan.global_bsz*spec.seq/med*1e3/n,
                       mfu=spec.step_flops(plan.global_bsz)/med*1e3/n/989e12, loss=got['loss'][0],
                       **{f'{k}_mib': [e.get(k) for e in every] for k in ('reserved', 'allocated', 'context', 'left')})
            if args.trace: row['trace'] = [e['trace'] for e in every]
        except Exception: row['error'] = traceback.format_exc()[-2000:]
        rows[name] = row
        if rank==0:
            shown_row = row.get('error') or f"{row['ms']:8.1f} ms  {row['tokens_s_gpu']:9.0f} tok/s/GPU  MFU {row['mfu']:.1%}  reserved {row['reserved_mib']}  loss {row['loss']:.4f}  first {row['first_ms']/1e3:.0f} s  predicted {row['predicted']}"
            print(f'  {name:26s} {shown_row}', flush=True)
            for r,t in enumerate(row.get('trace', [])): print(shown(f'  {name}, rank {r}', t) if r==0 or 'pp' in name else '', flush=True)
        rest(); save(rows)
    return rows

def profiles(spec, args):
    "Of the collectives (those that ship, if this run measured none) and of the model (formulas, likewise)"
    from galvatron.profile.files import HardwareProfile, ModelProfile
    import galvatron, torch
    hw, world = Path(args.out)/'hardware_configs', torch.distributed.get_world_size()
    hw = HardwareProfile.load(hw if hw.exists() else Path(galvatron.__file__).parent/'profile_hardware'/'hardware_configs', 1, world)
    try: return hw, ModelProfile.load(args.profile or Path(args.out)/'configs', spec, 'bf16')
    except ValueError: return hw, ModelProfile.analytic(spec, 'h200', 'bf16')

def predicted(spec, plan, options, args):
    "Predicted step (ms) with its parts, and peak (MiB); the reason where there is none"
    try:
        from galvatron.cost.pipeline import predict
        hw, mp = profiles(spec, args)
        p = predict(plan, spec, hw, mp, options)
        return dict(ms=p.step_ms, mib=[s.peak_mib for s in p.stages], context_mib=[s.beside_mib for s in p.stages], source='formulas' if mp.analytic else 'profile',
                    time=[{k: round(float(v), 2) for k,v in s.time.items() if v} for s in p.stages])
    except Exception as e: return dict(reason=f'{type(e).__name__}: {e}'[:300])

# ---- plans under memory budgets

BUDGETS = [('llama-3b 8x4096', 40), ('llama-1b-32k 8x4096', 24), ('llama-7b 8x4096', 80), ('llama-3b 8x4096', 80)] # model and batch, GiB of a GPU

def budget_plans(spec, gib, bsz, options, args):
    "The plan that the search chooses, and the three best of the uniform plans that are the fastest of their kind within the budget, as predicted: (name, plan)"
    from galvatron.cost.pipeline import predict
    from galvatron.plan import LayerStrategy as L, Plan, VocabStrategy as V
    from galvatron.search.engine import search
    from galvatron.search.space import SearchArgs
    import torch
    (hw, mp), n, w = profiles(spec, args), spec.n_layers, torch.distributed.get_world_size()
    got = search(spec, hw, mp, SearchArgs(num_gpus_per_node=w, memory_constraint=gib, settle_bsz=bsz, sp_space='tp+sp', sequence_parallel=True, default_dp_type='zero2'))
    kinds = dict(zero3=(L(dp_type='zero3'), V(embed_sdp=True), {}), zero2=(L(dp_type='zero2'), V(), {}), tp=(L(w, dp_type='zero2'), V(w), {}), ulysses=(L(w, True, dp_type='zero3'), V(w, True, True), {}),
                 pp=(L(), V(), dict(pp_deg=w, default_dp_type='ddp', pipeline_type='pipedream_flush')))
    def variants(layer, vocab, kw):
        from dataclasses import replace
        for chunks in (1, 2, 4, 8):
            for r in (0, n//4, n//2, n):
                p = Plan(tuple(replace(layer, recompute=i<r) for i in range(n)), vocab, **dict(dict(global_bsz=bsz, default_dp_type='zero2', chunks=chunks), **kw))
                if not p.violations(w, spec, options): yield predict(p, spec, hw, mp, options, gib*1024), f'c{chunks} r{r}', p
    best = [(v[0].iteration_ms, f'{kind} {v[1]}', v[2]) for kind,how in kinds.items() for v in sorted((v for v in variants(*how) if v[0].fits), key=lambda v: v[0].iteration_ms)[:1]]
    return ([('search', got.plan)] if got.plan else []) + [b[1:] for b in sorted(best, key=lambda b: b[0])[:3]]

def budgets(args, world, rank, save):
    "Plans under budgets: predicted, then run"
    import torch.distributed as dist
    from galvatron.plan import Plan, RunOptions
    from galvatron.runtime.groups import default_device
    rows, start, options = {}, time.time(), RunOptions('bf16', compile=args.compile, sequence_parallel=True)
    for text,gib in BUDGETS:
        case = Case.parse(text, args.tiny)
        spec, gib = case.spec, 3. if args.tiny else gib # more than a process of the shipped profile holds
        box = [[(n, p.to_json(), predicted(spec, p, options, args)) for n,p in budget_plans(spec, gib, case.batch, options, args)] if rank==0 else None]
        dist.broadcast_object_list(box, device=default_device())
        for name,plan,said in box[0]:
            if args.plans and not any(p in f'{case.model}, {gib} GiB: {name}' for p in args.plans.split(';')): continue
            if late(start, args): rows[f'{case.model}, {gib} GiB: {name}'] = dict(skipped='out of time'); continue
            row, t = dict(model=case.model, budget_gib=gib, plan=json.loads(plan), predicted=said, tokens=case.batch*spec.seq), time.time()
            try:
                got = run_plan(spec, Plan.from_json(plan), options, 3 if args.tiny else 6, trace=args.trace)
                every = [None]*world
                dist.all_gather_object(every, got)
                ms = sorted(got['ms'][2:] or got['ms'])
                row |= dict(ms=ms[len(ms)//2], spread=(ms[-1]-ms[0])/ms[len(ms)//2], **{f'{k}_mib': [e.get(k, 0.) for e in every] for k in ('reserved', 'allocated', 'context', 'left')}, seconds=time.time()-t)
                row['mfu'] = spec.step_flops(case.batch)/row['ms']*1e3/world/989e12
                if args.trace: row['trace'] = [e['trace'] for e in every]
            except Exception as e: row['error'] = f'{type(e).__name__}: {e}'[-500:]
            rows[f'{case.model}, {gib} GiB: {name}'] = row
            if rank==0: print(f"  {case.model} {gib} GiB {name:16s}", row.get('error') or f"{row['ms']:8.1f} ms  MFU {row['mfu']:.1%}  predicted {said.get('ms', 0):.1f} ({said.get('ms', 0)/row['ms']-1:+.1%}), reserved {max(row['reserved_mib']):.0f}, predicted {[round(a-c) for a,c in zip(said.get('mib', []), said.get('context_mib', []))]}, {row['seconds']:.0f} s, {said.get('source') or said}", flush=True)
            rest(); save(rows)
    return rows

# ---- profiles of the models, other trainers, a restart: each in processes of its own

def model_profiles(args, n):
    "One process a GPU profiles its share of the models, alone and at the width of all GPUs"
    names = list({Case.parse(f'{name} 8x4096', args.tiny).spec.name: name for name in (t.split()[0] for t,_ in BUDGETS)}.values()) # toy shapes are all one model
    code = f"import sys; sys.path[:0] = {sys.path!r}; from bench_multi_gpu import profile_one; profile_one(*sys.argv[1:])"
    jobs = [subprocess.Popen([sys.executable, '-c', code, args.out, ','.join(names[i::n]), str(n), str(int(args.tiny)), str(int(args.compile)), str(args.seconds/len(names[i::n])-5)], env=dict(os.environ, CUDA_VISIBLE_DEVICES=str(i))) for i in range(min(n, len(names)))]
    end = time.time()+args.seconds                                  # each model is profiled within a time of its own
    try: [j.wait(timeout=max(1, end-time.time())) for j in jobs]
    finally: [j.kill() for j in jobs]
    if failed := [names[i::n] for i,j in enumerate(jobs) if j.returncode]: raise RuntimeError(f'not profiled, or not all of them: {failed}')
    return dict(profiled=names)

def profile_one(out, names, n, tiny, compiled, seconds):
    from galvatron.profile.model import ProfileModelArgs, profile_model
    for name in names.split(','):
        t, spec = time.time(), Case.parse(f'{name} 8x4096', bool(int(tiny))).spec
        profile_model(ProfileModelArgs(profile_type='all', profile_seq_length_list=str(spec.seq), batches='1,4', widths=f'1,{n}', forms='sp,ulysses,tp', compile=bool(int(compiled)), budget_ms=2 if int(tiny) else 40., output_dir=f'{out}/configs', time_limit=max(1., float(seconds))), spec) # plain tensor parallelism last: no plan under a budget has it
        print(f'  {name}: profiled in {time.time()-t:.0f} s', flush=True)

def trainers(args, n):
    "torchtitan in turn with ours, under each plan that both know"
    from importlib.util import find_spec
    if not find_spec('torchtitan'): raise ModuleNotFoundError('torchtitan is not installed: its wheels and those it needs go to a folder on PYTHONPATH')
    rows, case, begin = [], Case.parse('llama-1b-32k 8x4096', args.tiny), time.time()
    for plan,theirs in {'zero3': 'torchtitan', 'zero2': 'torchtitan-zero2', 'tp-sp': 'torchtitan-tp', 'ddp': 'torchtitan-ddp', 'pp-1f1b x8': 'torchtitan-pp'}.items(): # a pipeline does not start with PyTorch 2.11
        if args.plans and plan not in named(args.plans): continue
        for who in ('ours', theirs)*args.turns:
            t = time.time()
            if t-begin>args.seconds: row = dict(skipped='out of time')
            else: row = ours(args, n, plan) if who=='ours' else run_rival(who, case, 4 if args.tiny else 12, 90, n)
            rows.append(dict(plan=plan, who=who, seconds=time.time()-t, **{k: row[k] for k in ('tokens_s', 'ms', 'reserved_mib', 'error', 'skipped') if k in row}))
            print(f"  {plan:10s} {who:16s}", f"{row['tokens_s']:.0f} tokens/s a GPU, {row['ms']:.1f} ms, {time.time()-t:.0f} s" if 'ms' in row else row.get('skipped') or row['error'], flush=True)
            put(args, 'trainers', rows)
    return rows

def ours(args, n, plan):
    "A block of steps under one of the plans for speed, in processes of its own"
    own = Path(args.out)/'turn'
    (own/'multi_gpu.json').unlink(missing_ok=True)                  # of another block
    try:
        within(120, [sys.executable, __file__, '--out', own, '--parts', 'speed', '--plans', plan, '--nproc', n] + ['--compile']*args.compile + ['--tiny']*args.tiny, stdout=subprocess.DEVNULL)
        row = json.loads((own/'multi_gpu.json').read_text())['speed'][plan]
    except (subprocess.TimeoutExpired, OSError, KeyError) as e: return dict(error=f'no result: {type(e).__name__}: {e}'[:300])
    if 'ms' not in row: return dict(error=str(row.get('error') or row)[-500:])
    return dict(tokens_s=row['tokens_s_gpu'], ms=row['ms'], reserved_mib=max(map(float, row['reserved_mib'])) if row['reserved_mib'][0] else 0.)

def restart(args, n):
    "Save under one plan, go on under another, and lose a rank: what `galvatron train` does over this machine's network"
    from galvatron.runtime.launch import _descendants
    folder = Path(tempfile.mkdtemp())
    words = ['--nproc', n, '--model_type', 'llama_hf', '--hidden_size', 256, '--num_hidden_layers', 4, '--num_attention_heads', 8, '--vocab_size', 1003, '--seq_length', 128, '--mixed_precision', 'fp32', '--lr', 1e-3, '--lr_decay_style', 'constant',
             '--global_train_batch_size', 16, '--mock_data', '--eval_iters', 0, '--tensorboard', 0, '--time_limit', 200]
    plans = dict(zero3=['--sdp', 1, '--chunks', 2], tp=['--global_tp_deg', n, '--vocab_tp', n, '--chunks', 1], pp=['--pp_deg', n, '--chunks', 4, '--pipeline_type', 'pipedream_flush'])
    def start(plan, to, iters, every, load=None):
        more = ['--save', folder/to, '--save_interval', every, '--train_iters', iters] + (['--load', folder/load] if load else [])
        return subprocess.Popen([sys.executable, '-m', 'galvatron', 'train', *map(str, [*words, *plans[plan], *more])], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ, OMP_NUM_THREADS='1'))
    def losses(to): return {r['step']: r['loss'] for r in map(json.loads, (folder/to/'metrics.jsonl').read_text().splitlines()) if 'loss' in r}
    def finish(p, limit=120):
        try: text = p.communicate(timeout=limit)[0]
        finally: p.kill()
        if p.returncode: print(text[-1500:])
        return p.returncode, text
    out = dict(codes=[finish(start('zero3', 'a', 20, 10))[0]])
    going = [start(plan, to, 30, 100, 'a') for plan,to in (('tp', 'tp'), ('pp', 'pp'), ('zero3', 'z'))]    # side by side: most of their time is imports
    out['codes'] += [finish(p)[0] for p in going]
    print(' ', out['codes'], flush=True)
    put(args, 'restart', out)
    same = losses('z')
    out['relative'] = {plan: max(abs(losses(plan)[s]/same[s]-1) for s in range(21, 31)) for plan in ('tp', 'pp')}
    every = 3 if args.tiny else 20
    p = start('zero3', 'k', 100000, every)
    end = time.time()+90
    while time.time()<end and p.poll() is None and not ((folder/'k/metrics.jsonl').exists() and len(losses('k'))>2.25*every): time.sleep(.2)
    ranks = [q for q in _descendants(p.pid) if rank_of(q)==str(n-1)]        # of this run: others may use the machine
    if not ranks:
        p.terminate()
        return out | dict(error='no rank to kill: '+finish(p)[1][-500:])
    t = time.time()
    os.kill(max(ranks), signal.SIGKILL)
    code, text = finish(p, 90)
    at = max(losses('k'))
    out['killed'] = dict(seconds=time.time()-t, code=code, said=[l for l in text.splitlines() if 'rank' in l.lower()][-3:], step=at)
    put(args, 'restart', out)
    words[words.index('--time_limit')+1] = 60
    p = start('zero3', 'k', at+every, every, 'k')
    code, text = finish(p, 90)
    said = re.search(r'continuing after step (\d+)', text)
    out['restarted'] = dict(code=code, after=int(said[1]) if said else None, last=max(losses('k')))
    print(' ', json.dumps(out), flush=True)
    return out

def rank_of(pid):
    "Value of RANK in the environment of a training process"
    try:
        words = Path(f'/proc/{pid}/environ').read_bytes().split(b'\0')
        return dict(w.decode().split('=', 1) for w in words if b'=' in w).get('RANK') if b'galvatron' in Path(f'/proc/{pid}/cmdline').read_bytes() else None
    except (OSError, ValueError): return None

def ranks(args):
    "What every rank does"
    import torch, torch.distributed as dist
    from galvatron.runtime.launch import init_distributed
    init_distributed(timeout_s=120)
    rank, world, file = dist.get_rank(), dist.get_world_size(), Path(args.out)/'multi_gpu.json'
    old = json.loads(file.read_text()) if file.exists() else {}      # other parts of an earlier run stay
    res = old | dict(gpus=world, device=torch.cuda.get_device_name() if torch.cuda.is_available() else 'cpu', torch=torch.__version__,
               nccl='.'.join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None, compile=args.compile)
    def save(part, value):
        res[part] = value
        if rank==0: file.write_text(json.dumps(res, indent=1))
    run = dict(correctness=lambda save: correctness(args, world, rank), curves=lambda save: curves(args, world, rank, save, old.get('curves', {})), speed=lambda save: speed(args, world, rank, save), budgets=lambda save: budgets(args, world, rank, save))
    for part in (todo := [p for p in args.parts if p in run]):
        begin, args.seconds = time.time(), share(args, [part], todo)
        if late(begin, args): save(part, res.get(part, dict(skipped='out of time')))
        else: save(part, run[part](lambda rows: save(part, rows)))
        if rank==0: print(f'{part}: {time.time()-begin:.0f} s of {args.seconds:.0f}', flush=True)
    dist.barrier()
    dist.destroy_process_group()

def own_words(words):
    "The command line without --nproc, which torchrun would take for its own"
    i = words.index('--nproc') if '--nproc' in words else len(words)
    return words[:i]+words[i+2:]

def torchrun(args, n, parts, end):
    "The parts in which every rank takes part, in processes of their own until `end`"
    code = within(end-time.time()+LAST, [sys.executable, '-m', 'torch.distributed.run', '--standalone', f'--nproc-per-node={n}', __file__, *own_words(sys.argv[1:]), '--parts', ','.join(parts), '--end', end], env=dict(os.environ, OMP_NUM_THREADS='1'))
    if code: raise RuntimeError(f"{', '.join(parts)}: ended with code {code}")

def within(seconds, command, **kw):
    "Run a command; one that takes longer is asked to end, so that it ends its own processes too"
    p = subprocess.Popen([*map(str, command)], **kw)
    try: return p.wait(timeout=max(1, seconds))
    finally:
        if p.poll() is None: stop(p)

def hardware(args, n):
    code = within(min(300, args.end-time.time()), [sys.executable, '-m', 'galvatron', 'profile-hardware', '--num_gpus_per_node', n, '--output_dir', Path(args.out)/'hardware_configs', *(['--end_mb', 1] if args.tiny else [])], env=dict(os.environ, OMP_NUM_THREADS='1'))
    if code: raise RuntimeError(f'profile-hardware ended with code {code}')

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--out', default='results')
    ap.add_argument('--nproc', type=int, default=0, help='ranks (default: all GPUs, or 2 without any)')
    ap.add_argument('--parts', default=','.join(PARTS), help='by commas; they run in this order')
    ap.add_argument('--minutes', type=float, default=9, help='for all parts together; a plan that has begun is ended a minute later')
    ap.add_argument('--plans', default='', help='only these of the plans for speed, correctness or trainers, by commas, or by semicolons where a name has a comma; of the plans under budgets those whose name contains one of these, by semicolons')
    ap.add_argument('--profile', default='', help='folder with the model profile (default: the analytic one)')
    ap.add_argument('--steps', type=int, default=9)
    ap.add_argument('--turns', type=int, default=1, help='blocks of each trainer')
    ap.add_argument('--trace', action='store_true', help='record where the time of a step goes under each speed plan')
    ap.add_argument('--compile', action='store_true')
    ap.add_argument('--tiny', action='store_true')
    ap.add_argument('--end', type=float, default=0., help=argparse.SUPPRESS)  # of --minutes, as time.time(): for the ranks
    args = ap.parse_args()
    if bad := set(args.parts.split(','))-set(PARTS): ap.error(f"--parts {', '.join(bad)}: allowed are {', '.join(PARTS)}")
    args.parts, args.end = [p for p in PARTS if p in args.parts.split(',')], args.end or time.time()+60*args.minutes
    if 'RANK' in os.environ: return ranks(args)                     # of `torchrun`
    import torch
    n = args.nproc or torch.cuda.device_count() or 2
    known = {**speed_plans(make_spec(TINY if args.tiny else FULL).n_layers, n), **exact_plans(n)}
    if set(args.parts) & {'speed', 'correctness'} and not set(args.parts) & {'budgets', 'trainers'} and (bad := [p for p in named(args.plans) if p not in known]):
        ap.error(f"--plans {', '.join(bad)}: allowed are {'; '.join(known)}")
    Path(args.out).mkdir(parents=True, exist_ok=True)
    file, alone = Path(args.out)/'multi_gpu.json', dict(profile=hardware, models=model_profiles, trainers=trainers, restart=restart)
    turns = [[*g] for by_ranks,g in groupby(args.parts, lambda p: p not in alone) for g in ([g] if by_ranks else ([p] for p in g))]
    for parts in turns:
        t, args.seconds, name = time.time(), share(args, parts, args.parts), parts[0]
        old = json.loads(file.read_text()).get(name) if file.exists() else None
        try: got = torchrun(args, n, parts, t+args.seconds) if name not in alone else alone[name](args, n) if args.seconds>0 else old or dict(skipped='out of time')
        except Exception: got = dict(error=traceback.format_exc()[-2000:]); print(got['error'])
        if got and name in alone: put(args, name, got)
        print(f"{', '.join(parts)}: {time.time()-t:.0f} s of {args.seconds:.0f}", flush=True)

if __name__=='__main__': main()
