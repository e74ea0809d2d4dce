"""What the device does with a step's matrix products and attention alone: TFLOP/s on random data, at a clock that has settled

    python tools/kernel_rates.py            # on a GPU, half a minute

Products of 16,384 tokens (8,192 for GPT-2's width) with the matrices of a layer, as a forward, its input gradient and its weight gradient; causal attention under each kernel, FLOPs of the lower half counted.
"""
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BF16 = dict(device='cuda', dtype=torch.bfloat16)
WIDTHS = {16384: [(4096, 4096), (4096, 12288), (4096, 11008), (4096, 22016), (11008, 4096), (4096, 32000), (2048, 2048), (2048, 3072), (2048, 8192), (2048, 16384), (8192, 2048)], 8192: [(1600, 1600), (1600, 4800), (1600, 6400)]}
ATTENTION = [(4, 32, 32, 4096, 128, 0.), (8, 32, 32, 2048, 128, 0.), (4, 32, 8, 4096, 64, 0.), (4, 25, 25, 2048, 64, 0.), (4, 25, 25, 2048, 64, .1)] # batch, heads, KV heads, length, head size, dropout

def ms_of(f, seconds=.25):
    "Mean over as many calls as take that long"
    for _ in range(3): f()
    torch.cuda.synchronize()
    start = time.time()
    f()
    torch.cuda.synchronize()
    n = max(3, int(seconds/max(1e-6, time.time()-start)))
    a, b = torch.cuda.Event(True), torch.cuda.Event(True)
    a.record()
    for _ in range(n): f()
    b.record()
    torch.cuda.synchronize()
    return a.elapsed_time(b)/n

def products(tokens, k, n):
    x, w, g = torch.randn(tokens, k, **BF16), torch.randn(n, k, **BF16)*.02, torch.randn(tokens, n, **BF16)
    rate = lambda f: 2*tokens*k*n/1e9/ms_of(f)
    print(f'{tokens} x {k} to {n:6}: forward {rate(lambda: x@w.T):.0f}, input gradient {rate(lambda: g@w):.0f}, weight gradient {rate(lambda: g.T@x):.0f} TFLOP/s', flush=True)

def attention(b, heads, kv, s, size, drop, kernel):
    make = lambda h: torch.randn(b, s, h, size, **BF16).transpose(1, 2).requires_grad_()
    q, k, v, o, flop = make(heads), make(kv), make(kv), torch.randn(b, s, heads, size, **BF16).transpose(1, 2), 4*b*heads*s*s*size/2/1e9
    run = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=drop, enable_gqa=heads!=kv)
    def both():
        run().backward(o)
        q.grad = k.grad = v.grad = None
    with sdpa_kernel(kernel):
        with torch.no_grad(): forward = ms_of(run)
        print(f'attention {b} x {s}, {heads}/{kv} heads of {size}, dropout {drop}, {kernel.name.removesuffix("_ATTENTION").lower():9}: forward {flop/forward:.0f}, forward and backward {3*flop/ms_of(both):.0f} TFLOP/s of the model', flush=True)

def main():
    x, start = torch.randn(8192, 8192, **BF16), time.time()
    while time.time()-start<2: x@x # until the clock has settled
    for tokens,pairs in WIDTHS.items():
        for k,n in pairs: products(tokens, k, n)
    for args in ATTENTION:
        for kernel in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
            try: attention(*args, kernel)
            except RuntimeError as e: print(f'attention {args}, {kernel.name}: {str(e).splitlines()[0]}')

if __name__=='__main__': main()
