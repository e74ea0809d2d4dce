"""One GPU in one command: speed, where a step's time goes, other trainers in the same run, and predictions made before the runs

    python tools/bench_h200.py --out results                              # everything, most valuable first, within --minutes
    python tools/bench_h200.py --out results --parts speed,trace          # some parts
    python tools/bench_h200.py --out results --parts speed --cases 'llama-1b 4x4096, llama-7b/16 4x4096 r4'   # these cases (see steps.py)
    python tools/bench_h200.py --out results --tiny                       # the same code on toy shapes, on a CPU too

Each part writes {part}.json into --out as it goes. Causal FLOP count, MFU of 989 TFLOP/s, median of the steps after the third.
"""
import argparse, json, os, sys, time, traceback
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from steps import MIB, Case, measure

PARTS = {'speed': 170, 'trace': 60} # seconds of each when all run in 10 minutes

SPEED = """llama-7b/16 4x4096; llama-1b 4x4096; llama-7b 2x4096 r?; llama-3b 2x4096; gpt-1.5b 8x2048; llama-0.3b 16x2048;
llama-7b/16 8x2048; llama-1b 8x2048; llama-3b 4x2048; llama-7b/16 2x8192; llama-1b 2x8192; llama-3b 1x8192; llama-7b 1x8192 r?; llama-7b 4x2048 r?;
gpt-1.5b 4x4096; gpt-1.5b 2x8192; llama-0.3b 8x4096; llama-0.3b 4x8192; llama-1b 8x4096; llama-3b 4x4096; llama-7b 4x4096 r32"""
TRACE = 'llama-7b/16 4x4096; llama-1b 4x4096'

def cases_of(text, tiny): return [Case.parse(t.strip(), tiny) for t in text.replace(',', ';').split(';') if t.strip()]

class Book:
    "The results of one part, on disk after each row"
    def __init__(self, args, part, seconds):
        self.path, self.begin, self.end = Path(args.out)/f'{part}.json', time.time(), time.time()+seconds
        self.data = dict(part=part, machine=machine(), tiny=args.tiny, command=' '.join(sys.argv[1:]), date=time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime()), rows=[])

    @property
    def left(self): return self.end-time.time()

    def add(self, row, shown=''):
        self.data['rows'].append(row)
        self.save()
        print(f"  {row['case']:32s} {shown or line(row)}", flush=True)

    def save(self, **more):
        self.data |= more | dict(seconds=round(time.time()-self.begin, 1))
        tmp = self.path.with_suffix('.tmp')
        tmp.write_text(json.dumps(self.data, indent=1))
        os.replace(tmp, self.path)

def line(r):
    "One row as text"
    if r.get('oom'): return 'out of memory'
    if 'error' in r: return r['error'][-400:]
    if 'skipped' in r: return r['skipped']
    return (f"{r['ms']:8.1f} ms  {r['tokens_s']:9,.0f} tok/s  MFU {r['mfu']:6.1%}  reserved {r['reserved_mib']/1024:6.1f} GiB  host {r['host_ms']:6.1f} ms  spread {r['spread']:.1%}"
            f"  build {r['build_s']:.1f} s  first {r['first_s']:.1f} s  loss {r['loss']:.4f}  graphs {r['compiler']['graphs']}")

def machine():
    "Where this runs"
    import platform, torch, transformers
    cuda = torch.cuda.is_available()
    out = dict(device=torch.cuda.get_device_name() if cuda else 'cpu', python=platform.python_version(), torch=torch.__version__, transformers=transformers.__version__, cores=os.cpu_count(),
               alloc_conf=os.environ.get('PYTORCH_ALLOC_CONF') or os.environ.get('PYTORCH_CUDA_ALLOC_CONF') or '')
    if cuda:
        import triton
        out |= dict(memory_mib=torch.cuda.mem_get_info()[1]/MIB, triton=triton.__version__, cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version())
    return out

def run_case(case, steps, trace=False, budget_mib=None):
    "Measure a case; `r?` begins at the fewest recomputed layers that were predicted to fit and goes on until it does"
    if case.recompute>=0: return measure(case, steps, trace)
    n, total = case.spec.n_layers, budget_mib or machine().get('memory_mib', 1e9)
    tried = []
    for r in range(fewest(case, total), n+1):
        if tried and r<min(n, tried[-1]+max(1, n//8)): continue
        row = measure(replace(case, recompute=r), steps, trace)
        if not row.get('oom'): return row | dict(out_of_memory_with=tried)
        tried.append(r)
    return row | dict(out_of_memory_with=tried)

def fewest(case, mib):
    "Fewest recomputed layers with which the case is predicted to fit"
    from galvatron.cost.pipeline import predict
    from galvatron.profile.files import HardwareProfile, ModelProfile
    hw, mp = HardwareProfile.analytic('h200', 1, 1), ModelProfile.analytic(case.spec, 'h200', case.precision)
    for r in range(case.spec.n_layers):
        c = replace(case, recompute=r)
        if predict(c.plan, c.spec, hw, mp, c.options).peak_mib<=mib: return r
    return case.spec.n_layers

def speed(args, book, default=SPEED, trace=False):
    "Step time, tokens/s, MFU and peak memory of the cases"
    slowest = 0.
    for case in cases_of(args.cases or default, args.tiny):
        if book.left<slowest*.7: book.add(dict(case=str(case), skipped='out of time')); continue
        begin = time.time()
        try: book.add(run_case(case, 3 if args.tiny else args.steps, trace))
        except Exception: book.add(dict(case=str(case), error=traceback.format_exc()[-1500:]))
        slowest = max(slowest, time.time()-begin)

def trace(args, book):
    "The kernels of two steps"
    speed(args, book, TRACE, trace=True)
    for row in book.data['rows']:
        t = row.get('trace', {})
        if 'by_kind' not in t: continue
        print(f"  {row['case']}: span {t['span_ms']:.1f} ms, busy {t['busy_ms']:.1f}, idle {t['idle_ms']:.2f} in {t['gaps']:.0f} gaps ({t['gaps_over_10us']:.0f} over 10 us), copies {t['copies_ms']:.2f} (exposed {t['exposed_copies_ms']:.2f})")
        for k,v in t['by_kind'].items(): print(f"    {k:22s} {v['ms']:8.2f} ms {v['ms']/t['span_ms']:6.1%}  {v['calls']:6.0f} calls" + (f"  {v['model_tflops']:.0f} TFLOP/s" if 'model_tflops' in v else ''))
        for k in t['top']: print(f"      {k['ms']:8.2f} ms {k['calls']:6.0f} x {k['name'][:120]}")
        for g in t['largest_gaps'][:4]: print(f"      gap {g['us']:.0f} us after {g['after'][:50]} before {g['before'][:50]}")

RUN = dict(speed=speed, trace=trace)

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--out', default='results')
    ap.add_argument('--parts', default=','.join(PARTS), help='by commas, in this order')
    ap.add_argument('--minutes', type=float, default=9.5, help='for all parts together, divided by their value')
    ap.add_argument('--cases', default='', help='in place of the own list of the parts speed and trace')
    ap.add_argument('--steps', type=int, default=8)
    ap.add_argument('--tiny', action='store_true')
    args = ap.parse_args()
    parts, begin, failed = args.parts.split(','), time.time(), False
    if bad := set(parts)-set(PARTS): ap.error(f"--parts {', '.join(bad)}: allowed are {', '.join(PARTS)}")
    Path(args.out).mkdir(parents=True, exist_ok=True)
    for i,part in enumerate(parts):
        left = 60*args.minutes-(time.time()-begin)
        book = Book(args, part, left*PARTS[part]/sum(PARTS[p] for p in parts[i:]))
        print(f'{part}: {book.left:.0f} s at most', flush=True)
        try: RUN[part](args, book)
        except Exception: traceback.print_exc(); book.data['error'], failed = traceback.format_exc()[-1500:], True
        book.save()
        print(f"{part}: {time.time()-book.begin:.0f} s", flush=True)
    print(f'{time.time()-begin:.0f} s in all')
    return failed

if __name__=='__main__': sys.exit(main())
