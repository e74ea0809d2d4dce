"""How much of a compiled layer's messages the order of its graph leaves exposed, by simulation: no GPU is needed

    python tools/message_order.py                           # the layers of Llama 3.2 1B, tensor and sequence parallel on two ranks, 8 samples of 4,096 tokens
    python tools/message_order.py --samples 1 --graph 4     # so many layers in one graph
    python tools/message_order.py --form tp                 # without sequence parallelism

The graphs of forward and backward are traced on two processes and not run. Each is ordered as written, as `runtime.overlap` orders it, and as it would with other figures for what operations take; then it passes through a machine that computes and sends at
the same time. What such a machine takes is given by --truth, by default the figures of `runtime.overlap`, which are what traces on two H200 show (67 MB take 0.2 to 0.23 ms beside arithmetic; a seventh of the arithmetic is fused operations).
"""
import argparse, sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent)); sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
BEFORE = '650e12,400e12,3e12,230e9,2e-5' # its figures until 2026-11-30

def traced(form, samples, graph, hidden, truth):
    "Rows for the graphs of `graph` layers, forward then backward"
    import torch
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table
    from functorch.compile import min_cut_rematerialization_partition
    from bench_multi_gpu import FULL, make_spec
    from galvatron.plan import LayerStrategy, Plan, RunOptions, VocabStrategy
    from galvatron.runtime import overlap, stage
    rows = []
    def with_figures(text, f):
        if not text: return f()
        names = 'MATMUL', 'ATTENTION', 'FUSED', 'LINK', 'LATENCY'
        now = [getattr(overlap, n) for n in names]
        for n,v in zip(names, map(float, text.split(','))): setattr(overlap, n, v)
        try: return f()
        finally: [setattr(overlap, n, v) for n,v in zip(names, now)]
    def record(gm, example):
        nodes = [n for n in gm.graph.nodes if n.op=='call_function']
        times = with_figures(truth, lambda: {n: overlap.seconds(n) for n in nodes})
        orders = {'as written': nodes, 'before': with_figures(BEFORE, lambda: overlap.overlapped(nodes)), 'ordered': overlap.overlapped(nodes)}
        rows.append(dict(compute=sum(t for n,t in times.items() if not overlap._starts(n)), messages=sum(t for n,t in times.items() if overlap._starts(n)), **{name: overlap.makespan(o, times)[1] for name,o in orders.items()}))
        shapes = [overlap._meta(o) for o in next(n for n in gm.graph.nodes if n.op=='output').args[0]]
        return lambda *_: [torch.empty(v.shape, dtype=v.dtype) if isinstance(v, torch.Tensor) else v for v in shapes]
    backend = aot_autograd(fw_compiler=record, bw_compiler=record, decompositions=select_decomp_table(), partition_fn=min_cut_rematerialization_partition)
    inductor = torch.compile
    torch.compile = lambda f, dynamic=None, options=None: inductor(f, dynamic=dynamic, backend=backend)
    spec = make_spec(dict(FULL, hidden_size=hidden, intermediate_size=4*hidden)).with_layers((graph,))
    model = stage.StageModel(spec, Plan((LayerStrategy(2, dp_type='zero2'),)*graph, VocabStrategy(2), global_bsz=samples, default_dp_type='zero2'), RunOptions('bf16', compile=True, sequence_parallel=form=='sp'))
    run = model.runs[1]
    x = torch.randn(samples, spec.seq//(1 if form=='tp' else 2), hidden, dtype=torch.bfloat16, requires_grad=True)
    y = run(x, **stage.Documents(model).arguments(run, spec.seq))
    torch.autograd.backward(y, torch.empty_like(y))
    return rows

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--form', choices=('sp', 'tp'), default='sp'); p.add_argument('--samples', type=int, default=8); p.add_argument('--hidden', type=int, default=2048)
    p.add_argument('--graph', type=int, default=1, help='layers, if they are small enough to share a graph'); p.add_argument('--truth', default='', help='FLOP/s of products and of attention, bytes/s of fused operations and of messages, seconds of latency')
    o = p.parse_args()
    import message_order
    from galvatron.runtime.launch import run_ranks
    rows = run_ranks(message_order.traced, 2, o.form, o.samples, o.graph, o.hidden, o.truth, timeout=280)[0]
    for name,row in zip(('forward', 'backward'), rows): print(f'{name:9}', ', '.join(f'{k} {1e3*v/o.graph:.3f} ms' for k,v in row.items()), 'a layer')

if __name__=='__main__': main()
