"""Several GPUs of one host in one command: profile, correctness over NCCL, and speed and memory of plans, predicted before they run.

    python tools/bench_multi_gpu.py --out results            # all visible GPUs
    python tools/bench_multi_gpu.py --out results --tiny     # the same code on gloo and the CPU, small shapes

Writes hardware_configs/ and multi_gpu.json into --out; a part that fails is recorded and the next one runs.
"""
import argparse, gc, json, os, subprocess, sys, time, traceback
from pathlib import Path

from gpu_trace import shown, traced

MIB = 2**20
FULL = dict(model_type='llama_hf', hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
            intermediate_size=8192, vocab_size=32000, seq=4096)
TINY = dict(FULL, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128, vocab_size=512, seq=64)
EXACT = dict(TINY, hidden_size=256, num_attention_heads=8, num_key_value_heads=4, intermediate_size=512, vocab_size=1003, seq=128)

def make_spec(d, **more):
    from galvatron.model_spec import ModelSpec
    d = {**d, **more}
    kw = {k:v for k,v in d.items() if k not in ('model_type', 'num_hidden_layers', 'seq')}
    return ModelSpec.from_size(d['model_type'], None, d['num_hidden_layers'], d['seq'], **kw)

def speed_plans(n_layers, world):
    "name: (Plan, RunOptions arguments); the same 8 samples a step for all"
    from galvatron.plan import LayerStrategy as L, Plan, VocabStrategy as V
    sp, n = dict(sequence_parallel=True), n_layers
    p = lambda layers, vocab=V(), **kw: Plan(tuple(layers), vocab, **{**dict(global_bsz=8, default_dp_type='zero2'), **kw})
    half = lambda a, b: [a]*(n//2) + [b]*(n-n//2)
    z3, z2, tp, ul = L(dp_type='zero3'), L(dp_type='zero2'), L(world, dp_type='zero2'), L(world, True, dp_type='zero2')
    pp = dict(pp_deg=world, default_dp_type='ddp', pipeline_type='pipedream_flush')
    return {
        'alone': (Plan((L(),)*n, global_bsz=8//world), {}),        # every GPU for itself: what communication is measured against
        'zero3': (p([z3]*n, V(embed_sdp=True)), {}),
        'zero2': (p([z2]*n), {}),
        'ddp': (p([L()]*n, default_dp_type='ddp'), {}),
        'tp-sp': (p([tp]*n, V(world)), sp),
        'tp': (p([tp]*n, V(world)), {}),
        'ulysses': (p([ul]*n, V(world, True)), {}),
        'pp-1f1b x8': (p([L()]*n, chunks=8, **pp), {}),
        'pp-1f1b x4': (p([L()]*n, chunks=4, **pp), {}),
        'half tp-sp, half zero3': (p(half(tp, z3), V(world)), sp),
        'zero3 recompute': (p([L(dp_type='zero3', recompute=True)]*n, V(embed_sdp=True)), {}),
        'alternating tp-sp, zero3': (p([tp, z3]*(n//2), V(world)), sp),
        'zero2 x4': (p([z2]*n, chunks=4), {}),
        'zero3 x4, no async': (p([z3]*n, V(embed_sdp=True), chunks=4), dict(async_grad_reduce=False)),
        'zero3, half recompute': (p(half(L(dp_type='zero3', recompute=True), z3), V(embed_sdp=True)), {}),
        'pp-gpipe x8': (p([L()]*n, chunks=8, **{**pp, 'pipeline_type':'gpipe'}), {}),
        'zero2, vtp': (p([z2]*n, V(world)), sp),
    }

def exact_plans(world):
    "12 plans for correctness: name: (Plan, RunOptions arguments)"
    from galvatron.plan import LayerStrategy as L, Plan, VocabStrategy as V
    sp, p = dict(sequence_parallel=True), lambda layers, vocab=V(), **kw: Plan(tuple(layers), vocab, global_bsz=16, **kw)
    w, pp = world, dict(pp_deg=world)
    return {
        'ddp': (p([L()]*4), {}), 'zero2': (p([L(dp_type='zero2')]*4, default_dp_type='zero2', chunks=2), {}),
        'zero3': (p([L(dp_type='zero3')]*4, V(embed_sdp=True), chunks=2), dict(async_grad_reduce=False)),
        'tp': (p([L(w)]*4), {}), 'tp-sp': (p([L(w)]*4, V(w)), sp), 'ulysses': (p([L(w, True)]*4, V(w, True)), {}),
        'gpipe x1': (p([L()]*4, chunks=1, **pp), {}), 'gpipe x4': (p([L()]*4, chunks=4, **pp), {}),
        '1f1b x8': (p([L()]*4, chunks=8, pipeline_type='pipedream_flush', **pp), {}), 'vtp': (p([L()]*4, V(w)), sp),
        'mixed': (p([L(w), L(dp_type='zero3'), L(w, True), L(recompute=True)], V(w), chunks=2), sp),
        'recompute, compile': (p([L(recompute=True), L(w, recompute=True), L(), L()]), dict(compile=True, **sp)),
    }

def run_plan(spec, plan, options, steps, lr=1e-3, seed=0, place=None, trace=False):
    "Train `steps` steps on random tokens: losses, gradient norms, step times (ms) and peak memory of this rank, and where the time goes if asked"
    import torch
    from galvatron.runtime.optim import adamw, clip_grad_norm
    from galvatron.runtime.schedule import Pipeline
    from galvatron.runtime.stage import StageModel
    cuda = torch.cuda.is_available()
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
        left, total = torch.cuda.mem_get_info()
        out.update(allocated=torch.cuda.max_memory_allocated()/MIB, reserved=torch.cuda.max_memory_reserved()/MIB, context=(total-left-torch.cuda.memory_reserved())/MIB) # context: with communicators and the buffers of direct messages
    if trace: out['trace'] = traced(step)
    return out

def mark():
    "A point in time: of the device's queue if there is a GPU"
    import torch
    if not torch.cuda.is_available(): return time.perf_counter()
    e = torch.cuda.Event(enable_timing=True)
    e.record()
    return e

def between(a, b)->float: # ms
    return (b-a)*1e3 if isinstance(a, float) else a.elapsed_time(b)

def free():
    "Give everything of the last plan back before the next one is measured"
    import torch
    torch._dynamo.reset(); gc.collect()
    if torch.cuda.is_available(): torch.cuda.empty_cache()

def correctness(world, rank):
    "Losses and norms of 3 steps under every plan against one process alone (fp32)"
    from galvatron.plan import LayerStrategy, Plan, RunOptions
    from galvatron.runtime.groups import Place
    from galvatron.runtime.groups import default_device
    spec, rows = make_spec(EXACT), {}
    alone = Plan((LayerStrategy(),)*4, global_bsz=16)
    ref = run_plan(spec, alone, RunOptions('fp32'), 3, place=Place.solo(default_device()))
    for name,(plan,kw) in exact_plans(world).items():
        try:
            got = run_plan(spec, plan, RunOptions('fp32', **kw), 3)
            err = max(abs(a-b)/abs(b) for k in ('loss', 'norm') for a,b in zip(got[k], ref[k]))
            rows[name] = dict(error=err, ok=err<1e-5)
        except Exception: rows[name] = dict(error=traceback.format_exc()[-1500:], ok=False)
        if rank==0: print(f'  {name:22s} {rows[name]}', flush=True)
        free()
    return rows

def speed(args, world, rank, save):
    "Step time, tokens/s, MFU and peak memory of the plans, each predicted first where profiles are there"
    import torch, torch.distributed as dist
    from galvatron.plan import RunOptions
    from galvatron.runtime.groups import Place, default_device
    spec = make_spec(TINY if args.tiny else FULL)
    steps, names, rows, start = (3 if args.tiny else args.steps), args.plans.split(',') if args.plans else None, {}, time.time()
    for name,(plan,kw) in speed_plans(spec.n_layers, world).items():
        if names and name not in names: continue
        late = torch.tensor(float(time.time()-start>args.seconds), device='cuda' if torch.cuda.is_available() else 'cpu')
        dist.all_reduce(late)
        if late.item(): rows[name] = dict(skipped='out of time'); continue
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
                       **{f'{k}_mib': [e.get(k) for e in every] for k in ('reserved', 'allocated', 'context')})
            if args.trace: row['trace'] = [e['trace'] for e in every]
        except Exception: row['error'] = traceback.format_exc()[-2000:]
        rows[name] = row
        if rank==0:
            shown_row = row.get('error') or f"{row['ms']:8.1f} ms  {row['tokens_s_gpu']:9.0f} tok/s/GPU  MFU {row['mfu']:.1%}  reserved {row['reserved_mib']}  loss {row['loss']:.4f}  first {row['first_ms']/1e3:.0f} s  predicted {row['predicted']}"
            print(f'  {name:26s} {shown_row}', flush=True)
            for r,t in enumerate(row.get('trace', [])): print(shown(f'  {name}, rank {r}', t) if r==0 or 'pp' in name else '', flush=True)
        free(); save(rows)
    return rows

def predicted(spec, plan, options, args):
    "Predicted step (ms) and peak (MiB), from the profiles in --out and --profile; the reason where there is none"
    try:
        from galvatron.cost.pipeline import predict
        from galvatron.profile.files import HardwareProfile, ModelProfile
        hw = HardwareProfile.load(Path(args.out)/'hardware_configs')
        mp = ModelProfile.load(args.profile, spec, 'bf16') if args.profile else ModelProfile.analytic(spec, 'h200', 'bf16')
        p = predict(plan, spec, hw, mp, options)
        return dict(ms=p.iteration_ms, mib=[s.peak_mib for s in p.stages])
    except Exception as e: return dict(reason=f'{type(e).__name__}: {e}'[:300])

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
    if 'correctness' in args.parts: save('correctness', correctness(world, rank))
    if 'speed' in args.parts: save('speed', speed(args, world, rank, lambda rows: save('speed', rows)))
    dist.barrier()
    dist.destroy_process_group()

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--out', default='results')
    ap.add_argument('--nproc', type=int, default=0, help='ranks (default: all GPUs, or 2 without any)')
    ap.add_argument('--parts', default='profile,correctness,speed')
    ap.add_argument('--plans', default='', help='only these of the speed plans, by commas')
    ap.add_argument('--profile', default='', help='folder with the model profile (default: the analytic one)')
    ap.add_argument('--steps', type=int, default=9)
    ap.add_argument('--seconds', type=float, default=400, help='no new plan is begun after this long in the speed part')
    ap.add_argument('--trace', action='store_true', help='record where the time of a step goes under each speed plan')
    ap.add_argument('--compile', action='store_true')
    ap.add_argument('--tiny', action='store_true')
    args = ap.parse_args()
    args.parts = args.parts.split(',')
    if 'RANK' in os.environ: return ranks(args)
    import torch
    n = args.nproc or torch.cuda.device_count() or 2
    Path(args.out).mkdir(parents=True, exist_ok=True)
    env = dict(os.environ, OMP_NUM_THREADS='1')
    if 'profile' in args.parts:
        t = time.time()
        subprocess.run([sys.executable, '-m', 'galvatron', 'profile-hardware', '--num_gpus_per_node', str(n), '--output_dir', str(Path(args.out)/'hardware_configs'),
                        *(['--end_mb', '1'] if args.tiny else [])], env=env, timeout=300)
        print(f'profile-hardware: {time.time()-t:.0f} s', flush=True)
    if set(args.parts)-{'profile'}:
        subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', f'--nproc-per-node={n}', __file__, *sys.argv[1:]], env=env, timeout=1200)

if __name__=='__main__': main()
