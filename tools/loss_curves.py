"""One model, one text, every way to run it on one device: do micro-batches, recomputation and compilation change what is learned?

    python tools/loss_curves.py --out nbs/tutorials/results          # 0.3 billion parameters, 200 steps, one GPU
    python tools/loss_curves.py --out nbs/tutorials/results --jobs 5 # five runs at a time: what is learned is the same, a step takes longer
    python tools/loss_curves.py --out /tmp/curves --tiny             # the same code on a CPU, small, without code generation

Writes loss_curves.json into --out after every run, and goes on where an interrupted call stopped.
"""
import argparse, functools, gc, json, os, statistics, subprocess, sys, tempfile, time
from pathlib import Path

import torch

from galvatron.data.gpt import GPTDataset
from galvatron.data.loader import Loader
from galvatron.data.preprocess import write_pydoc_topics
from galvatron.model_spec import ModelSpec
from galvatron.plan import LayerStrategy, Plan, RunOptions
from galvatron.runtime.groups import Place
from galvatron.runtime.launch import init_distributed
from galvatron.runtime.optim import adamw, clip_grad_norm
from galvatron.runtime.schedule import Pipeline
from galvatron.runtime.stage import StageModel

FULL = dict(layers=24, seq=512, hidden_size=1024, num_attention_heads=16, num_key_value_heads=16, intermediate_size=2816, vocab_size=257)
TINY = dict(layers=4, seq=64, hidden_size=64, num_attention_heads=4, num_key_value_heads=4, intermediate_size=176, vocab_size=257)

def runs():
    "Name: precision, micro-batches, recomputation, compilation, seed"
    ways = [(c, r, k) for c in (1, 4) for r in (False, True) for k in (False, True)]
    name = lambda c, r, k: f'chunks {c}'+', recompute'*r+', compile'*k
    return {name(*w): ('bf16', *w, 0) for w in ways} | {'chunks 1, fp32': ('fp32', 1, False, False, 0), 'chunks 1, another seed': ('bf16', 1, False, False, 1), 'chunks 1, third seed': ('bf16', 1, False, False, 2),
        'chunks 1, compile, another seed': ('bf16', 1, False, True, 1), 'chunks 1, compile, third seed': ('bf16', 1, False, True, 2)}

def train(spec, data, device, steps, bsz, lr, precision, chunks, recompute, compiled, seed):
    "Losses, gradient norms and times of the steps, and the peak of memory"
    if device.type=='cuda': torch.cuda.reset_peak_memory_stats()
    model = StageModel(spec, Plan((LayerStrategy(recompute=recompute),)*spec.n_layers, chunks=chunks, global_bsz=bsz), RunOptions(precision, compile=compiled), Place.solo(device), seed)
    pipeline, optimizer = Pipeline(model), adamw(model, lr, betas=(.9, .95), weight_decay=.1)
    out, batches = [], Loader(data, bsz, chunks, model.rows, device=device, seed=seed)
    for step, micro_batches in zip(range(steps), batches):
        start = time.perf_counter()
        for g in optimizer.param_groups: g['lr'] = lr*min(1., (step+1)/max(1, steps//20))
        loss = pipeline.step(micro_batches)
        norm = clip_grad_norm(model, 1., optimizer)
        optimizer.step()
        optimizer.zero_grad()
        out.append((loss, norm, time.perf_counter()-start))          # read at the end: nothing waits for the device
    batches.close()
    loss, norm, ms = zip(*((l.item(), n.item(), 1e3*t) for l,n,t in out))
    return dict(loss=[round(x, 5) for x in loss], norm=[round(x, 5) for x in norm], ms=statistics.median(ms[len(ms)//2:]), peak_mib=torch.cuda.max_memory_allocated()/2**20 if device.type=='cuda' else None)

def together(args, file, what, done, todo, limit=900):
    "Share the runs among processes, and put what they wrote into one file"
    with tempfile.TemporaryDirectory() as d:
        folders = [Path(d)/str(i) for i in range(min(args.jobs, len(todo)))]
        own = [x for x in ('--tiny',) if args.tiny] + ['--steps', str(args.steps), '--bsz', str(args.bsz)]
        jobs = [subprocess.Popen([sys.executable, __file__, '--out', str(f), *own, '--only', ';'.join(todo[i::len(folders)])], env=dict(os.environ, OMP_NUM_THREADS='1')) for i,f in enumerate(folders)]
        try: codes = [j.wait(timeout=limit) for j in jobs]
        finally: [j.kill() for j in jobs]
        for f in folders:
            if (g := f/file.name).exists(): done |= json.loads(g.read_text())['runs']
    file.write_text(json.dumps(dict(what=what, runs={k: done[k] for k in runs() if k in done}))+'\n')
    if any(codes): sys.exit(f'{sum(map(bool, codes))} of {len(codes)} processes failed')

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--out', required=True)
    p.add_argument('--tiny', action='store_true')
    p.add_argument('--steps', type=int, default=200)
    p.add_argument('--bsz', type=int, default=0, help='samples of a step (16; 8 with --tiny)')
    p.add_argument('--force', action='store_true', help='run everything again')
    p.add_argument('--jobs', type=int, default=1, help='runs at a time, each in a process of its own')
    p.add_argument('--only', default='', help='names of runs, by semicolons')
    a = p.parse_args()
    bsz, lr, shape = a.bsz or (8 if a.tiny else 16), 1e-3 if a.tiny else 6e-4, TINY if a.tiny else FULL
    if a.tiny: torch.compile = functools.partial(torch.compile, backend='aot_eager')
    device, spec = init_distributed(), ModelSpec.from_size('llama_hf', **shape)
    what = dict(device=torch.cuda.get_device_name() if device.type=='cuda' else 'CPU', torch=torch.__version__, parameters=spec.params, steps=a.steps, bsz=bsz, lr=lr, compiler='aot_eager' if a.tiny else 'inductor', **shape)
    file = Path(a.out)/'loss_curves.json'
    file.parent.mkdir(parents=True, exist_ok=True)
    old = json.loads(file.read_text()) if file.exists() and not a.force else {}
    done = old['runs'] if old.get('what')==what else {}
    todo = {k: v for k,v in runs().items() if k not in done and k in (a.only.split(';') if a.only else runs())}
    if a.jobs>1: return together(a, file, what, done, list(todo))
    with tempfile.TemporaryDirectory() as d:
        data = GPTDataset(write_pydoc_topics(Path(d)/'topics'), spec.seq, num_samples=a.steps*bsz, split='1', cache=None)
        for name,how in todo.items():
            start = time.time()
            done[name] = train(spec, data, device, a.steps, bsz, lr, *how)
            file.write_text(json.dumps(dict(what=what, runs=done))+'\n')
            print(f"{name:32} loss {done[name]['loss'][0]:.3f} → {statistics.mean(done[name]['loss'][-10:]):.4f}, {done[name]['ms']:.1f} ms a step, {time.time()-start:.0f} s", flush=True)
            gc.collect()
            if device.type=='cuda': torch.cuda.empty_cache()

if __name__=='__main__': main()
