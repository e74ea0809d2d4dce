"How long the search takes, and how that grows"
import argparse, resource, time

from galvatron.model_spec import ModelSpec
from galvatron.profile.files import HardwareProfile, ModelProfile
from galvatron.search.engine import search
from galvatron.search.space import SearchArgs

def run(name, spec, device='a100', **kw):
    "CPU seconds of one search, with what it found"
    a = SearchArgs(**kw)
    hardware, profile = HardwareProfile.analytic(device, a.num_nodes, a.num_gpus_per_node), ModelProfile.analytic(spec, device)
    t = time.process_time()
    r = search(spec, hardware, profile, a)
    t = time.process_time()-t
    best = f'{r.plans[0].per_sample:9.3f} ms a sample, gap {100*r.gap:.2g} %' if r.plan else 'nothing fits'
    print(f'{name:58} {t:6.2f} s  {r.engine.considered:6} configurations  {best}  ({resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024:.0f} MB)', flush=True)

llama7b, llama405b = ModelSpec.from_size('llama_hf', 'llama-7b'), ModelSpec.from_size('llama_hf', 'llama3-405b', seq=8192)
vit = ModelSpec.from_size('vit_hf', 'vit-xhuge')

def cases():
    "The three cases that the issue names, and harder relatives"
    one = dict(memory_constraint=36, settle_bsz=64)
    run('warm-up', llama7b, **one)
    run('llama-7b, 8 GPUs, 36 GB, batch 64, full space', llama7b, **one)
    run('the same, tp+sp and Megatron-SP', llama7b, sp_space='tp+sp', sequence_parallel=True, **one)
    run('the same, 20 GB', llama7b, sp_space='tp+sp', sequence_parallel=True, **one|dict(memory_constraint=20))
    run('the same, 36 GB, best five', llama7b, sp_space='tp+sp', sequence_parallel=True, top_k=5, **one)
    run('llama-7b, 8 GPUs, 36 GB, batches 8..10240', llama7b, memory_constraint=36)
    run('the same, tp+sp and Megatron-SP', llama7b, memory_constraint=36, sp_space='tp+sp', sequence_parallel=True)
    big = dict(device='h100', num_nodes=512, memory_constraint=80, settle_bsz=2048, sp_space='tp+sp', sequence_parallel=True)
    run('Llama-3.1-405B, 4096 GPUs, 80 GB, batch 2048, full, tp+sp', llama405b, **big)
    run('the same without zero3: 8 stages', llama405b, **big|dict(disable_sdp=1, default_dp_type='zero2'))
    run('the same, 60 GB, batch 4096: 16 stages', llama405b, **big|dict(disable_sdp=1, default_dp_type='zero2', max_pp_deg=16, settle_bsz=4096, memory_constraint=60))

def hard():
    "Short layers, dozens of configurations that are nearly equal: what is left open is closed by joining stages"
    for gb in (24, 36, 40): run(f'ViT-xhuge, 64 GPUs, {gb} GB, batch 64', vit, num_nodes=8, memory_constraint=gb, settle_bsz=64)
    for bsz in (64, -1): run(f"ViT-xhuge, 8 H200, 20.5 GB, batch{f' {bsz}' if bsz>0 else 'es 8..10240'}", vit, 'h200', memory_constraint=20.5, settle_bsz=bsz)
    for gb in (24, 36): run(f'ViT-xhuge, 64 GPUs, {gb} GB, batches 8..10240', vit, num_nodes=8, memory_constraint=gb)

def growth():
    "One thing at a time"
    base = dict(memory_constraint=24, settle_bsz=256, sp_space='tp+sp', sequence_parallel=True)
    for layers in (16, 32, 64, 128, 256): run(f'{layers} layers (8 GPUs, 24 GB)', ModelSpec.from_size('llama_hf', 'llama-7b', layers), **base|dict(memory_constraint=24*max(1, layers/32)))
    for nodes in (1, 4, 16, 64, 256): run(f'{8*nodes} GPUs (llama-7b, 24 GB)', llama7b, **base|dict(num_nodes=nodes, settle_bsz=256*nodes))
    for gb in (17, 20, 24, 32, 48, 80): run(f'{gb} GB (llama-7b, 8 GPUs)', llama7b, **base|dict(memory_constraint=gb))
    for pp in (1, 2, 4, 8, 16): run(f'up to {pp} stages (64 layers, 16 GPUs, 24 GB)', ModelSpec.from_size('llama_hf', 'llama-7b', 64), **base|dict(num_nodes=2, max_pp_deg=pp))
    for most in (64, 640, 10240): run(f'batches 8..{most} (llama-7b, 8 GPUs, 24 GB)', llama7b, **base|dict(settle_bsz=-1, max_bsz=most))

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('what', nargs='?', choices=['quick', 'all'], default='all', help='quick: the cases only, about 15 s; all: harder ones and growth too, minutes (default)')
    what = p.parse_args().what
    cases()
    if what=='all': hard(); growth()
