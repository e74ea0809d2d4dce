"""Predicted against measured step times of ten plans on this machine's CPU: profiles the machine, prices the plans, trains each for some steps

    python tools/predicted_measured.py [--nproc 4] [--steps 7] [--out nbs/tutorials/results/predicted_measured.json]

There is no bar: a shared CPU is noisy, and its ranks disturb each other as GPUs do not. The order of the plans is what to look at.
"""
import argparse, json, os, platform, re, statistics, sys, tempfile, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from galvatron.model_spec import ModelSpec
from galvatron.plan import LayerStrategy as S, Plan, RunOptions, VocabStrategy as V

SEQ, LAYERS, BATCH = 128, 4, 16
SHAPE = dict(hidden_size=256, num_attention_heads=8, num_key_value_heads=8, intermediate_size=704, vocab_size=512)

def model(): return ModelSpec.from_size('llama_hf', None, layers=LAYERS, seq=SEQ, **SHAPE)

def plans(n):
    "name: (plan, options)"
    full = RunOptions('fp32')
    def p(s, vocab=V(), **kw): return Plan((s,)*LAYERS, vocab, **{'global_bsz': BATCH, 'pipeline_type': 'pipedream_flush', 'default_dp_type': 'zero2' if s.dp_type=='zero2' else 'ddp', **kw})
    z3, half = S(dp_type='zero3'), (S(n),)*(LAYERS//2) + (S(dp_type='zero3'),)*(LAYERS-LAYERS//2)
    return {
        'ddp': (p(S()), full), 'zero2': (p(S(dp_type='zero2')), full), 'zero3': (p(z3, V(embed_sdp=True)), full), 'zero3 x4': (p(z3, V(embed_sdp=True), chunks=4), full),
        'ddp, recompute': (p(S(recompute=True)), full), f'tp {n}': (p(S(n), V(n)), full), f'tp {n}, SP': (p(S(n), V(n)), RunOptions('fp32', sequence_parallel=True)),
        f'Ulysses {n}': (p(S(n, ulysses=True), V(n, True)), full), f'pp {n} x4': (p(S(), pp_deg=n, chunks=4), full), f'half tp {n}, half zero3': (Plan(half, V(), global_bsz=BATCH), full)}

def measure(n, steps):
    "Fastest step of each plan, ms (on every rank)"
    import torch, torch.distributed as dist
    from galvatron.runtime.optim import adamw, clip_grad_norm
    from galvatron.runtime.schedule import Pipeline
    from galvatron.runtime.stage import StageModel
    out, spec = {}, model()
    for name, (plan, options) in plans(n).items():
        m = StageModel(spec, plan, options)
        pipe, opt = Pipeline(m), adamw(m)
        times = []
        for i in range(steps):
            x = torch.randint(0, SHAPE['vocab_size'], (BATCH, SEQ+1), generator=torch.Generator().manual_seed(i))
            micro = [dict(tokens=x[list(r), :-1], labels=x[list(r), 1:]) for r in m.rows()]
            dist.barrier(); begin = time.perf_counter()
            pipe.step(micro); clip_grad_norm(m, 1.); opt.step(); opt.zero_grad()
            dist.barrier(); times.append((time.perf_counter()-begin)*1e3)
        out[name] = min(times[2:]) # what disturbs only adds
    return out

def machine():
    "What it ran on"
    import torch
    try: name = re.search(r'model name\s*: (.*)', Path('/proc/cpuinfo').read_text())[1]
    except (OSError, TypeError): name = platform.processor() or platform.machine()
    return dict(cpu=name, cores=os.cpu_count(), system=platform.system(), python=platform.python_version(), torch=torch.__version__)

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--nproc', type=int, default=2); ap.add_argument('--steps', type=int, default=7)
    ap.add_argument('--out', default='', help='write the rows to this JSON file as well')
    a, load = ap.parse_args(), os.getloadavg()[0]
    from scipy.stats import kendalltau
    from predicted_measured import measure # from the module, which the ranks can import
    from galvatron.cost.pipeline import Pricer, predict
    from galvatron.profile.hardware import ProfileHardwareArgs, profile_hardware
    from galvatron.profile.model import ProfileModelArgs, profile_model
    from galvatron.runtime.launch import run_ranks
    with tempfile.TemporaryDirectory() as tmp:
        hw = profile_hardware(ProfileHardwareArgs(num_gpus_per_node=a.nproc, end_mb=4, output_dir=tmp, device='cpu'))
        mp = profile_model(ProfileModelArgs(profile_type='all', batches='1,2,4,8,16', profile_seq_length_list=str(SEQ), max_tp_deg=a.nproc, mixed_precision='fp32', output_dir=tmp, device='cpu'), model())
    measured = run_ranks(measure, a.nproc, a.nproc, a.steps, timeout=600, backend='gloo')[0]
    rows = [(name, predict(plan, pricer=Pricer(model(), hw, mp, options)).iteration_ms, measured[name]) for name, (plan, options) in plans(a.nproc).items()]
    error, order = statistics.mean(abs(p/m-1) for _, p, m in rows), kendalltau([p for _, p, _ in rows], [m for *_, m in rows])[0]
    print(f"{'plan':24}{'predicted ms':>14}{'measured ms':>14}{'error':>9}")
    for name, p, m in rows: print(f'{name:24}{p:14.1f}{m:14.1f}{p/m-1:9.0%}')
    print(f'mean error {error:.0%}, order (Kendall) {order:.2f}')
    if a.out:
        said = dict(date=time.strftime('%Y-%m-%d'), machine=machine(), load_before=load, ranks=a.nproc, steps=a.steps, contention=hw.meta.get('contention'), rows=[dict(plan=n, predicted_ms=p, measured_ms=m) for n, p, m in rows], mean_error=error, kendall_tau=order)
        Path(a.out).write_text(json.dumps(said, indent=1))

if __name__=='__main__': main()
