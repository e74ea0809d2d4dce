"""One GPU in one command: speed, where a step's time goes, other trainers in the same run, and predictions made before the runs

    python tools/bench_h200.py --out results                              # everything, most valuable first, within --minutes
    python tools/bench_h200.py --out results --parts speed,trace          # some parts
    python tools/bench_h200.py --out results --parts speed --cases 'llama-1b 4x4096, llama-7b/16 4x4096 r4'   # these cases (see steps.py)
    python tools/bench_h200.py --out results --merge more                 # puts what another call left in more/ into results/
    python tools/bench_h200.py --out results --tiny                       # the same code on toy shapes, on a CPU too

Each part writes {part}.json into --out as it goes. Causal FLOP count, MFU of 989 TFLOP/s, median of the steps that count (`settled` in steps.py).
"""
import argparse, json, os, sys, time, traceback
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault('TQDM_DISABLE', '1')
from steps import MIB, Case, Oracle, errors, folder_of, measure

PARTS = {'rivals': 165, 'profile': 95, 'speed': 150, 'predict': 85, 'search': 40, 'memory': 20, 'trace': 0} # seconds of each when all run in 10 minutes; speed traces its first two cases

SPEED = """llama-7b/16 4x4096; llama-1b 4x4096; llama-3b 8x2048; gpt-1.5b 4x2048; llama-7b/16 64x2048 c4; llama-1b 64x2048 c4; llama-7b 2x4096 r?; llama-3b 2x4096; llama-0.3b 16x2048;
llama-7b/16 8x4096; llama-7b/16 16x2048; llama-1b 16x2048; llama-7b/16 2x8192; llama-1b 2x8192; llama-7b 4x2048 r?; llama-3b 1x8192; llama-7b 1x8192 r?;
gpt-1.5b 4x4096; gpt-1.5b 2x8192; llama-0.3b 8x4096; llama-0.3b 4x8192; llama-3b 4x4096"""
TRACE = 'llama-7b/16 4x4096; llama-1b 4x4096'
RIVALS = 'llama-1b 4x4096; llama-7b/16 4x4096'
PROFILE = [ # model, compiled, precision, {length: batches}: most valuable first
    ('llama-1b', True, 'bf16', {4096: '1,4', 2048: '2,8'}), ('llama-7b', True, 'bf16', {4096: '1,4'}), ('llama-1b', False, 'bf16', {4096: '1,4'}), ('llama-7b', False, 'bf16', {4096: '1,4'}),
    ('llama-3b', True, 'bf16', {4096: '1,2'}), ('gpt-1.5b', True, 'bf16', {2048: '4'}), ('llama-0.3b', True, 'bf16', {2048: '4,16'}), ('llama-0.3b', False, 'bf16', {2048: '4,8,16'}),
    ('llama-0.3b', False, 'fp32', {2048: '2,4'}), ('llama-7b', True, 'bf16', {2048: '4', 8192: '1'}), ('llama-1b', True, 'bf16', {8192: '2'}), ('llama-3b', True, 'bf16', {2048: '4', 8192: '1'}),
    ('gpt-1.5b', True, 'bf16', {4096: '4', 8192: '2'}), ('llama-0.3b', True, 'bf16', {4096: '8', 8192: '4'})]
PREDICT = """llama-1b 1x4096; llama-1b 8x4096 c2; llama-1b 4x4096 r8; llama-1b 4x4096 r16; llama-1b 16x4096 c4 r16; llama-1b 2x2048; llama-1b 16x2048 c2; llama-1b 2x4096; llama-1b 16x4096 c16 r8;
llama-7b/16 1x4096; llama-7b/16 4x4096 r16; llama-7b/16 8x4096 c2 r8; llama-7b/16 4x4096 c4; llama-7b/8 4x4096 r4; llama-7b/8 2x4096;
llama-1b 8x4096 c8 eager; llama-1b 8x4096 c8 r8 eager; llama-1b 8x4096 c8 r16 eager; llama-1b 16x4096 c16 eager; llama-1b 4x4096 r16 c4 eager; llama-1b 4x4096 r16 c2 eager;
llama-1b 4x4096 eager; llama-1b 2x4096 r16 eager; llama-7b/8 4x4096 eager; llama-7b/8 2x4096 c2 r8 eager; llama-7b/8 8x4096 c8 r4 eager; llama-7b/8 8x4096 c8 r8 eager;
llama-0.3b 16x2048 eager; llama-0.3b 8x2048 r24 eager; llama-0.3b 4x2048 eager fp32; llama-0.3b 8x2048 c2 r12 eager fp32;
llama-0.3b 4x2048 r12; llama-0.3b 16x2048 c4; llama-3b 2x4096; llama-3b 4x4096 c2 r14; gpt-1.5b 4x2048; gpt-1.5b 8x2048 c2"""
SEARCHES = [('llama-1b 16x4096', 40), ('llama-7b/16 8x4096', 80), ('llama-7b/16 8x4096', 120)] # model and largest global batch (it may choose one, two or three quarters of it, too), budget in GiB
MEMORY = 'llama-1b 8x4096; llama-7b/16 4x4096; llama-3b 4x4096; gpt-1.5b 8x2048; llama-0.3b 32x2048; llama-7b 1x4096'

def cases_of(text, tiny):
    cases = [Case.parse(t.strip(), tiny) for t in text.replace(',', ';').split(';') if t.strip()]
    return cases if not tiny or cuda() else [replace(c, compile=False) for c in cases] # a compiler for the CPU takes longer than the rest together

def cuda():
    import torch
    return torch.cuda.is_available()

class Book:
    "The results of one part, on disk after each row"
    def __init__(self, args, part, seconds):
        self.path, self.begin, self.end = Path(args.out)/f"{'tried' if args.note else part}.json", time.time(), time.time()+seconds
        self.note, old = args.note, self.path.exists() and json.loads(self.path.read_text())['rows'] if args.note else []
        self.data = dict(part=part, machine=machine(), tiny=args.tiny, command=' '.join(sys.argv[1:]), date=time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime()), rows=list(old or []))

    @property
    def left(self): return self.end-time.time()

    def add(self, row, shown=''):
        self.data['rows'].append(({'note': self.note} if self.note else {}) | row)
        self.save()
        print(f"  {row['case']:32s} {shown or line(row)}", flush=True)

    def save(self, **more):
        self.data |= more | dict(seconds=round(time.time()-self.begin, 1))
        tmp = self.path.with_suffix('.tmp')
        tmp.write_text(json.dumps(self.data, indent=1, default=lambda o: o.item())) # NumPy's numbers
        os.replace(tmp, self.path)

def line(r):
    "One row as text"
    if r.get('oom'): return 'out of memory'
    if 'error' in r: return r['error'][-400:]
    if 'skipped' in r: return r['skipped']
    return (f"{r['ms']:8.1f} ms  {r['tokens_s']:9,.0f} tok/s  MFU {r['mfu']:6.1%}  reserved {r['reserved_mib']/1024:6.1f} GiB  host {r['host_ms']:6.1f} ms  spread {r['spread']:.1%}"
            f"  build {r['build_s']:.1f} s  first {r['first_s']:.1f} s  loss {r['loss']:.4f}" + (f"  graphs {r['compiler']['graphs']}" if 'compiler' in r else '') + against(r))

def against(r):
    "What was predicted"
    p = r.get('predicted', {})
    if 'ms' not in p: return f"  no prediction: {p['reason'][:120]}" if 'reason' in p else ''
    return f"  predicted {p['ms']:.1f} ms ({p['ms']/r['ms']-1:+.1%}), {p['mib']/1024:.1f} GiB ({p['mib']/max(r['reserved_mib'], 1)-1:+.1%}) by {p['source']}"

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

def run_case(case, steps, oracle, trace=False):
    "Measure a case, predicted first; `r?` begins at the fewest recomputed layers that are predicted to fit and goes on until it does"
    if case.batch*case.seq>2**16 and steps<=8: steps = min(steps, 6)
    if case.recompute>=0: return dict(predicted=oracle.safe(case)) | measure(case, steps, trace)
    n, tried = case.spec.n_layers, []
    for r in range(fewest(case, oracle), n+1):
        if tried and r<min(n, tried[-1]+max(1, n//8)): continue
        row = run_case(replace(case, recompute=r), steps, oracle, trace)
        if not row.get('oom'): break
        tried.append(r)
    return row | dict(out_of_memory_with=tried)

def fewest(case, oracle):
    "Fewest recomputed layers with which the case is predicted to fit"
    for r in range(case.spec.n_layers):
        if oracle.safe(replace(case, recompute=r)).get('fits', True): return r
    return case.spec.n_layers

def run_cases(args, book, cases, trace=0, steps=0):
    "Measure cases one after another, as far as the time goes; the first `trace` of them with their kernels"
    oracle, slowest = Oracle(work_of(args), machine().get('memory_mib')), 0.
    for i,case in enumerate(cases):
        if book.left<slowest*.6: book.add(dict(case=str(case), skipped='out of time')); continue
        begin = time.time()
        try: book.add(run_case(case, 3 if args.tiny else steps or args.steps or 8, oracle, i<trace))
        except Exception: book.add(dict(case=str(case), error=traceback.format_exc()[-1500:]))
        slowest = max(slowest, time.time()-begin)
        book.save(errors=errors(book.data['rows']))

def speed(args, book):
    "Step time, tokens/s, MFU and peak memory"
    run_cases(args, book, cases_of(args.cases or SPEED, args.tiny), 0 if args.cases else 2)
    show_traces(book)

def predict(args, book):
    "Configurations that were predicted before they ran"
    done = Path(args.out)/'speed.json'
    run_cases(args, book, cases_of(args.cases or PREDICT, args.tiny), steps=args.steps or 6)
    rows = book.data['rows'] + (json.loads(done.read_text())['rows'] if done.exists() else [])
    book.save(errors=(e := errors(rows)))
    print('  with those of speed:', json.dumps({k: {n: x for n,x in v.items() if n!='each'} if isinstance(v, dict) else v for k,v in e.items()}))

# ---- what the predictions are made from

def profile(args, book):
    "Profiles of this device and of the models, by the profilers of the package"
    import subprocess
    from galvatron.profile.model import ProfileModelArgs, profile_model
    hw = work_of(args)/'profiles'/'hardware_configs'
    r = subprocess.run([sys.executable, '-m', 'galvatron', 'profile-hardware', '--num_gpus_per_node', '1', '--output_dir', str(hw)], capture_output=True, text=True, timeout=120,
                       env=dict(os.environ, PYTHONPATH=os.pathsep.join([str(Path(__file__).resolve().parent.parent), os.environ.get('PYTHONPATH', '')])))
    book.add(dict(case='hardware', seconds=time.time()-book.begin, error=r.stderr[-800:] if r.returncode else ''), f'{time.time()-book.begin:.0f} s {r.stderr[-300:] if r.returncode else ""}')
    lists = dict(speed=SPEED, predict=PREDICT, search='; '.join(t for t,_ in SEARCHES), memory=MEMORY)
    key = lambda c: (c.model, c.compile, c.precision, c.seq)
    needed = {key(c) for c in cases_of(args.cases or '; '.join(lists.get(p, '') for p in args.parts.split(',')), args.tiny)}
    for model,compiled,precision,points in PROFILE:
        for seq,batches in points.items():
            case, t = cases_of(f"{model} 1x{seq} {'' if compiled else 'eager'} {precision}", args.tiny)[0], time.time()
            if needed and key(case) not in needed: continue
            name = f"{model} {precision} {'compiled' if case.compile else 'eager'} {batches} x {seq}"
            if book.left<5: book.add(dict(case=name, skipped='out of time'), 'out of time'); continue
            spec = case.spec
            try:
                m = profile_model(ProfileModelArgs(profile_type='all', profile_mode='static', profile_seq_length_list=str(spec.seq), batches=batches, max_tp_deg=1, mixed_precision=precision, compile=case.compile,
                                  budget_ms=2 if args.tiny else args.budget_ms, output_dir=str(folder_of(work_of(args), case)), device='' if cuda() else 'cpu', time_limit=max(1, book.left)), spec)
                at = [p for p in m.points if p.kind=='layer' and p.seq==spec.seq]
                row = dict(case=name, seconds=time.time()-t, points=[dict(batch=p.batch, forward_ms=p.forward_ms, backward_ms=p.backward_ms, recompute_ms=p.recompute_ms, activation_mib=p.activation_mib, spread=p.spread) for p in at])
                book.add(row, f"{row['seconds']:.1f} s  " + '; '.join(f'{p.batch}: {p.forward_ms:.3f} + {p.backward_ms:.3f} ms, keeps {p.activation_mib:.0f} MiB' for p in at if p.forward_ms))
            except Exception: book.add(dict(case=name, error=traceback.format_exc()[-1500:]))
    pack(work_of(args)/'profiles', Path(args.out)/'profiles.tar.gz')

def work_of(args):
    "Folder that holds profiles/: given, unpacked from the given file, or one that the commands of a session share (a result holds few files)"
    import tarfile, tempfile
    if not args.profiles: return Path(args.out)/'work' if args.tiny else Path('/tmp/galvatron_bench')
    if Path(args.profiles).is_dir(): return Path(args.profiles)
    work = Path(tempfile.mkdtemp())                             # not among those that another call makes meanwhile
    with tarfile.open(args.profiles) as t: t.extractall(work, filter='data')
    args.profiles = str(work)
    return work

def pack(folder, file):
    "All profiles as one small file"
    import tarfile
    with tarfile.open(file, 'w:gz') as t: t.add(folder, arcname='profiles')

# ---- others

def rivals(args, book):
    "Ours and theirs in turn, each in a process of its own, round after round over the cases"
    from rivals import run
    cases, order, instead, slowest = cases_of(args.cases or RIVALS, args.tiny), (args.rivals or 'ours,torchtitan;ours,torchtitan,hf').split(';'), {}, 20.
    for who,case in ((who, case) for round in order for case in cases for who in round.split(',')):
        who = instead.get(who, who)
        if who is None: continue
        if book.left<slowest: book.add(dict(case=str(case), who=who, skipped='out of time'), 'out of time'); continue
        t = time.time()
        row = run(who, case, 4 if args.tiny else max(args.steps, 10), min(book.left, 200 if who=='hf' else 120))
        if row.get('error') and who=='torchtitan': # without graphs, then not at all
            book.add(row, f"{who}: {row['error'][-300:]}")
            row = run('torchtitan-nograph', case, 4 if args.tiny else max(args.steps, 10), min(max(book.left, 20), 120))
            instead['torchtitan'] = None if row.get('error') else 'torchtitan-nograph'
        row['seconds'] = time.time()-t
        slowest = max(slowest, .8*row['seconds'])
        book.add(row, f"{row['who']:20s} {line(row)}")
        book.save(ratios=ratios(book.data['rows']))
    for r in book.data.get('ratios', ()): print('   ', json.dumps(r))

def ratios(rows):
    "tokens/s of ours over those of each other trainer, medians of the blocks of a case"
    import statistics
    out = []
    for case in dict.fromkeys(r['case'] for r in rows):
        by = {}
        for r in rows:
            if r['case']==case and 'tokens_s' in r: by.setdefault(r['who'], []).append(r['tokens_s'])
        mid = {k: statistics.median(v) for k,v in by.items()}
        out.append(dict(case=case, tokens_s=mid, blocks=by, ours_over={k: mid['ours']/v for k,v in mid.items() if k!='ours' and 'ours' in mid}))
    return out

# ---- what fits, and what is best

def memory_part(args, book):
    "Largest batch that runs, without and with recomputation (or as a case of --cases says), beginning at the largest predicted to fit"
    oracle, slowest = Oracle(work_of(args), machine().get('memory_mib', 30000.)), 13. # seconds of one batch: each is compiled anew
    for base in cases_of(args.cases or MEMORY, args.tiny):
        n = base.spec.n_layers
        for r in (base.recompute,) if base.recompute else (0, n):
            name = f"{base.model}{f'/{base.layers}' if base.layers else ''} r{r} {base.seq}"
            if book.left<slowest*.6: book.add(dict(case=name, skipped='out of time'), 'out of time'); continue
            fits = [b for b in range(1, 129) if oracle.safe(replace(base, batch=b, recompute=r)).get('fits')]
            guess, good, bad = max(fits, default=1), 0, 129
            for _ in range(3):
                b = guess if not good and bad==129 else good+max(1, good//8) if good and bad==129 else good+(bad-good)//2 if good else max(1, bad-max(1, bad//8))
                if b in (good, bad) or book.left<slowest*.6 or args.tiny and good: break
                case, begin = replace(base, batch=b, recompute=r), time.time()
                row = dict(predicted=oracle.safe(case)) | measure(case, 3)
                slowest = max(slowest, time.time()-begin)
                if 'error' in row: book.add(row); break
                if row.get('oom'): bad = b
                else: good, last = b, row
            book.add(dict(case=name, model=base.model, layers=n, seq=base.spec.seq, recompute=r, predicted_largest=max(fits, default=0), largest_that_ran=good, smallest_that_did_not=bad if bad<129 else None)
                     | ({k: last[k] for k in ('reserved_mib', 'tokens_s', 'mfu', 'predicted')} if good else {}), f'predicted {max(fits, default=0)}, ran {good}, out of memory at {bad if bad<129 else "-"}')

def search_part(args, book):
    "The plan that the search finds under a budget, and its neighbours, all measured"
    from galvatron.search.engine import search
    from galvatron.search.space import SearchArgs
    oracle = Oracle(work_of(args))
    searches = [s for s in SEARCHES if not args.budgets or str(s[1]) in args.budgets.split(',')]
    for i,(text,gib) in enumerate(searches):
        base, end, budget = cases_of(text, args.tiny)[0], time.time()+book.left/(len(searches)-i), .05 if args.tiny else gib
        step = base.batch//4
        got = search(base.spec, oracle.hardware(), oracle.profile(base), SearchArgs(num_gpus_per_node=1, memory_constraint=budget+oracle.predict(base)['context_mib']/1024, min_bsz=step,
                                                                                     max_bsz=base.batch, bsz_scale=step, mixed_precision=base.precision))
        name = f'{base.model}/{base.spec.n_layers} batch up to {base.batch} x {base.spec.seq}, {gib} GiB'
        if got.plan is None: book.add(dict(case=name, chosen=None), 'nothing fits'); continue
        chosen = replace(base, batch=got.plan.global_bsz, chunks=got.plan.chunks, recompute=sum(s.recompute for s in got.plan.layers))
        rows = []
        for case in [chosen, *neighbours(chosen, [step*i for i in range(1, 5)])]:
            if rows and end-time.time()<max(r['seconds'] for r in rows): break
            t, p = time.time(), oracle.safe(case)
            row = dict(predicted=p) | measure(case, 3 if args.tiny else 5)
            rows.append(row | dict(seconds=time.time()-t, within=bool(row.get('reserved_mib', 1e9)<=budget*1024)))
            print(f"    {row['case']:36s} {line(row)}", flush=True)
        fit = [r for r in rows if r['within'] and 'ms' in r]
        best = max(fit, key=lambda r: r['tokens_s'], default=None)
        regret = best['tokens_s']/rows[0]['tokens_s']-1 if best and rows[0]['within'] else None
        book.add(dict(case=name, budget_gib=gib, chosen=str(chosen), chosen_fits=rows[0]['within'], best=best and best['case'], regret=regret, rows=rows), f'chosen {chosen}, best {best and best["case"]}, regret {regret}')

def neighbours(c, batches):
    "Cases beside a chosen one, nearest first: more and fewer micro-batches, recomputed layers, and samples (in as many micro-batches, and in micro-batches as large)"
    n, out = c.spec.n_layers, []
    step = max(1, n//8)
    for chunks in (c.chunks, c.chunks*2, c.chunks//2):
        for r in (c.recompute, c.recompute-step, c.recompute+step, 0, n): out.append(replace(c, chunks=chunks, recompute=r))
    others = [replace(c, batch=b, chunks=k) for b in batches if b!=c.batch for k in dict.fromkeys((c.chunks, c.chunks*b//c.batch))]
    ok = lambda x: x!=c and x.chunks and x.batch%x.chunks==0 and 0<=x.recompute<=n
    near = sorted(filter(ok, dict.fromkeys(out)), key=lambda x: (abs(x.recompute-c.recompute), x.chunks!=c.chunks))[:7]
    return near[:3] + sorted(filter(ok, others), key=lambda x: (abs(x.batch-c.batch), x.chunks))[:3] + near[3:]

# ---- kernels

def trace(args, book):
    "The kernels of two steps"
    cases = cases_of(args.cases or TRACE, args.tiny)
    run_cases(args, book, cases, len(cases))
    show_traces(book)

def show_traces(book):
    for row in book.data['rows']:
        t = row.get('trace', {})
        if 'by_kind' not in t: continue
        print(f"  {row['case']}: span {t['span_ms']:.1f} ms, busy {t['busy_ms']:.1f}, idle {t['idle_ms']:.2f} in {t['gaps']:.0f} gaps ({t['gaps_over_10us']:.0f} over 10 us), copies {t['copies_ms']:.2f} (exposed {t['exposed_copies_ms']:.2f})")
        for k,v in t['by_kind'].items(): print(f"    {k:22s} {v['ms']:8.2f} ms {v['ms']/t['span_ms']:6.1%}  {v['calls']:6.0f} calls" + (f"  {v['model_tflops']:.0f} TFLOP/s" if 'model_tflops' in v else ''))
        for k in t['top'][:12 if row.get('recompute') is None else 25]: print(f"      {k['ms']:8.2f} ms {k['calls']:6.0f} x {k['name'][:120]}")
        for g in t['largest_gaps'][:4]: print(f"      gap {g['us']:.0f} us after {g['after'][:50]} before {g['before'][:50]}")

RUN = dict(profile=profile, speed=speed, rivals=rivals, predict=predict, search=search_part, memory=memory_part, trace=trace)

# ---- results of several calls as one

def merge(into, folders):
    "Put the rows that other calls measured into the files of a folder: each in place of its case's earlier or missing row, with the number of its call in `runs`"
    for file in (f for d in folders for f in sorted(Path(d).glob('*.json'))):
        new, path = json.loads(file.read_text()), Path(into)/file.name
        old = json.loads(path.read_text()) if path.exists() else dict(part=new['part'], tiny=new['tiny'], rows=[])
        runs = old.setdefault('runs', [call_of(old)] if 'date' in old else [])
        if call_of(new) in runs: continue
        rows = {key_of(r, i): r for i,r in enumerate(old['rows'])}
        for i,r in enumerate(new['rows'], len(rows)):
            if 'skipped' not in r or key_of(r, i) not in rows: rows[key_of(r, i)] = r | dict(run=len(runs))
        ran = {(r['case'], r.get('who')) for r in rows.values() if 'ms' in r}
        old['rows'] = [r for r in rows.values() if 'skipped' not in r or (r['case'], r.get('who')) not in ran]
        if 'ratios' in new: old['ratios'] = old.get('ratios', []) + [r | dict(run=len(runs)) for r in new['ratios'] if r['ours_over']] # of one call each: machines differ
        if 'errors' in old: old['errors'] = errors(old['rows'])
        runs.append(call_of(new))
        path.write_text(json.dumps(old | call_of(new), indent=1))

def call_of(data): return {k: data[k] for k in ('machine', 'command', 'date', 'seconds')}
def key_of(row, i): return row['case'], row.get('who'), 1+i if row.get('who') and 'ms' in row else 0 # blocks of other trainers all stay

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--out', default='results')
    ap.add_argument('--parts', default=','.join(p for p in PARTS if PARTS[p]), help='by commas, in this order; trace alone records the kernels of --cases')
    ap.add_argument('--minutes', type=float, default=9.5, help='for all parts together, divided by their value')
    ap.add_argument('--cases', default='', help='in place of the own lists of the parts; a profile is then made for these alone')
    ap.add_argument('--note', default='', help='what is being tried: the rows of the part go, with this note, to tried.json in place of its own file')
    ap.add_argument('--rivals', default='', help='rounds, by semicolons, of blocks in turn: ours, torchtitan, torchtitan-nograph, torchtitan-flex, hf')
    ap.add_argument('--profiles', default='', help='profiles.tar.gz of an earlier run, or a folder that holds profiles/')
    ap.add_argument('--budget_ms', type=float, default=40., help='of one timing in the profile')
    ap.add_argument('--steps', type=int, default=0, help='of a case, more than three; default: 8, of a prediction 6, of a block beside other trainers at least 10')
    ap.add_argument('--budgets', default='', help='GiB, by commas: these searches alone')
    ap.add_argument('--tiny', action='store_true')
    ap.add_argument('--merge', nargs='+', metavar='FOLDER', help='measure nothing: put what other calls left in these folders into --out')
    args = ap.parse_args()
    if args.merge: return merge(args.out, args.merge)
    import galvatron.runtime.train # noqa: F401, what is missing shows now, not in every row
    parts, begin, failed = args.parts.split(','), time.time(), False
    if bad := set(parts)-set(PARTS): ap.error(f"--parts {', '.join(bad)}: allowed are {', '.join(PARTS)}")
    Path(args.out).mkdir(parents=True, exist_ok=True)
    for i,part in enumerate(parts):
        left = 60*args.minutes-(time.time()-begin)
        book = Book(args, part, left*max(PARTS[part], 20)/sum(max(PARTS[p], 20) for p in parts[i:]))
        print(f'{part}: {book.left:.0f} s at most', flush=True)
        try: RUN[part](args, book)
        except Exception: traceback.print_exc(); book.data['error'], failed = traceback.format_exc()[-1500:], True
        book.save()
        print(f"{part}: {time.time()-book.begin:.0f} s", flush=True)
    print(f'{time.time()-begin:.0f} s in all')
    return failed

if __name__=='__main__': sys.exit(main())
