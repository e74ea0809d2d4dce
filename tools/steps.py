"""Training steps of one case on this machine: what to run, how long it took, how much memory, and where a step's time went

A case is written `llama-7b/16 4x4096 r8 c2 eager fp32`: 16 layers of the model, 4 samples of 4,096 tokens a step, the first 8 layers recomputed
(`r?`: as few as fit), 2 micro-batches, not compiled, fp32. What is left out: all layers, r0, c1, compiled, bf16.
"""
import gc, re, statistics, sys, time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from gpu_trace import length, recorded, union

MIB, PEAK = 2**20, 989. # TFLOP/s: dense bf16 of an H200 by its data sheet
WARM, SECONDS, MOST = 3, 2., 60 # steps that compile and warm up; a case that is asked for more runs for two seconds after them at least, for the clock comes down in the first, or for so many steps

MODELS = { # name: (family, size, changes); the 1.5 B model has GPT-2's own 25 heads of 64
    'llama-0.3b': ('llama_hf', 'llama-0.3b', {}), 'llama-1b': ('llama_hf', 'llama-3.2-1b', {}), 'llama-3b': ('llama_hf', 'llama-3.2-3b', {}),
    'llama-1b-32k': ('llama_hf', 'llama-3.2-1b', dict(vocab_size=32000, tie_word_embeddings=False)), 'llama-7b': ('llama_hf', 'llama-7b', {}), 'gpt-1.5b': ('gpt_hf', 'gpt-1.5b', dict(num_attention_heads=25))}
TINY = {'llama_hf': dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128, vocab_size=512),
        'gpt_hf': dict(hidden_size=64, num_attention_heads=4, vocab_size=512)} # toy shapes: 4 layers, a sequence of 1/64

@dataclass(frozen=True)
class Case:
    "One configuration on one GPU"
    model:str; batch:int; seq:int; layers:int=0; recompute:int=0; chunks:int=1; compile:bool=True; precision:str='bf16'; tiny:bool=False

    @classmethod
    def parse(cls, text, tiny=False):
        name, size, *more = text.split()
        model, _, layers = name.partition('/')
        kw = dict(layers=int(layers or 0), tiny=tiny)
        for w in more:
            if w=='eager': kw['compile'] = False
            elif w[0] in 'rc' and (w[1:].isdigit() or w=='r?'): kw[dict(r='recompute', c='chunks')[w[0]]] = -1 if w=='r?' else int(w[1:])
            elif w in ('fp32', 'bf16', 'fp16'): kw['precision'] = w
            else: raise ValueError(f'{text!r}: {w!r} is not understood')
        if model not in MODELS: raise ValueError(f"{text!r}: models are {', '.join(MODELS)}")
        b, s = map(int, size.split('x'))
        return cls(model, b, s, **kw)

    def __str__(self):
        more = [f'r{self.recompute}' if self.recompute>0 else 'r?' if self.recompute<0 else '', f'c{self.chunks}' if self.chunks>1 else '',
                '' if self.compile else 'eager', self.precision if self.precision!='bf16' else '']
        return ' '.join([self.model+(f'/{self.layers}' if self.layers else ''), f'{self.batch}x{self.seq}', *filter(None, more)])

    @property
    def spec(self):
        from galvatron.model_spec import ModelSpec
        family, size, more = MODELS[self.model]
        if self.tiny: return ModelSpec.from_size(family, size, 4, max(16, self.seq//64), **more | TINY[family])
        return ModelSpec.from_size(family, size, self.layers or None, self.seq, **more)

    @property
    def plan(self):
        from galvatron.plan import LayerStrategy, Plan
        n = self.spec.n_layers
        return Plan(tuple(LayerStrategy(recompute=i<self.recompute) for i in range(n)), chunks=self.chunks, global_bsz=self.batch)

    @property
    def options(self):
        from galvatron.plan import RunOptions
        return RunOptions(self.precision, compile=self.compile)

class Random:
    "Samples of random tokens, the same in every run"
    def __init__(self, vocab, seq, n=64): self.vocab, self.seq, self.n = vocab, seq, n
    def __len__(self): return self.n
    def __getitem__(self, i):
        import numpy as np
        t = np.random.default_rng([1234, i]).integers(0, self.vocab, self.seq+1)
        return dict(tokens=t[:-1], labels=t[1:])

def train(case, steps=8, trace=False):
    "Train as `galvatron train` does, without logs, for `steps` steps or more: ms of each step, host ms, losses, norms, peak memory; `trace` adds the summary of two steps"
    import torch
    from galvatron.runtime.arguments import TrainArgs
    from galvatron.runtime.train import Late, Trainer, memory, reset_memory
    spec, begin = case.spec, time.perf_counter()
    t = Trainer(spec, case.plan, TrainArgs(train_iters=1000), case.options)
    build, data = time.perf_counter()-begin, t.loader(Random(spec.vocab, spec.seq))
    reset_memory(t.device)
    marks, host, read = [Late(t.device)], [], []
    for i,mb in enumerate(data):
        begin = time.perf_counter()
        if i==WARM: warm = begin
        if i>=steps and (i<=WARM or begin-warm>=SECONDS or i>=MOST): break
        marks.append(Late(t.device, *t.train_step(mb)))
        host.append((time.perf_counter()-begin)*1e3)
        if len(marks)>2: read.append(marks[-2].read()) # a step late, as the loop of the trainer does
    read.append(marks[-1].read())
    ms = [b.since(a) for a,b in zip(marks, marks[1:])]
    used, reserved = memory(t.device)
    out = dict(ms=ms, host_ms=host, loss=[r[0] for r in read], norm=[r[1] for r in read], build_s=build, first_s=ms[0]/1e3, allocated_mib=used, reserved_mib=reserved, compiler=compiler())
    if t.device.type=='cuda':
        free_now, total = torch.cuda.mem_get_info()
        out |= {k: torch.cuda.memory_stats()[k] for k in ('num_alloc_retries', 'num_ooms')} | dict(context_mib=(total-free_now-torch.cuda.memory_reserved())/MIB)
    if trace: out['trace'] = traced(lambda: t.train_step(next(data)), t.device, spec, case)
    data.close()
    return out

def compiler():
    "What the compiler did: graphs, breaks, and anything that hit a limit"
    import torch
    c = torch._dynamo.utils.counters
    return dict(graphs=c['stats'].get('unique_graphs', 0), breaks=sum(c['graph_break'].values()), recompiles_hit_limit=sum(v for k,v in c['unimplemented'].items() if 'limit' in str(k)))

def free():
    "Give everything of the last case back before the next one is measured"
    import torch
    torch._dynamo.reset(); torch._dynamo.utils.counters.clear(); gc.collect()
    if torch.cuda.is_available(): torch.cuda.empty_cache()

def settled(ms):
    "Steps that count: those after the first ones and, where three or more are left, after the first second"
    ms = ms[WARM:] or ms
    late = [x for i,x in enumerate(ms) if sum(ms[:i])>=1000*SECONDS/2]
    return late if len(late)>2 else ms

def row_of(case, got):
    "The figures of a case: median of the steps that count, MFU with causal attention counted"
    ms, spec = sorted(settled(got['ms'])), case.spec
    med = statistics.median(ms)
    return dict(case=str(case), model=case.model, layers=spec.n_layers, batch=case.batch, seq=spec.seq, recompute=case.recompute, chunks=case.chunks, compile=case.compile, precision=case.precision,
                ms=med, spread=(ms[-1]-ms[0])/med, tokens_s=case.batch*spec.seq/med*1e3, mfu=spec.step_flops(case.batch)/med/1e9/PEAK, step_tflop=spec.step_flops(case.batch)/1e12,
                **{k: got[k] for k in ('reserved_mib', 'allocated_mib', 'build_s', 'first_s', 'compiler', 'num_alloc_retries', 'context_mib') if k in got},
                host_ms=statistics.median(got['host_ms'][WARM:] or got['host_ms']), steps=got['ms'], loss=got['loss'][-1], norm=got['norm'][-1])

def measure(case, steps=8, trace=False):
    "The row of a case; `oom` where it did not fit, `error` where it failed"
    from galvatron.runtime.collectives import is_oom
    free()
    try: got = train(case, steps, trace)
    except Exception as e:
        import traceback
        text = traceback.format_exc()
        oom = is_oom(e); e.__traceback__ = None; del e
        return dict(case=str(case), oom=True) if oom else dict(case=str(case), error=text[-1500:])
    finally: free()
    return row_of(case, got) | ({'trace': got['trace']} if trace else {})

# ---- what a case was predicted to need

def folder_of(out, case, compile=None):
    "Where the profile of a case lies: one folder for compiled layers, one for eager ones"
    return Path(out)/'profiles'/('compiled' if (case.compile if compile is None else compile) else 'eager')/MODELS[case.model][0]

class Oracle:
    "Predictions for one GPU from the profiles in a folder, or where there are none from formulas"
    def __init__(self, out, memory_mib=None): self.out, self.memory_mib, self.known = Path(out), memory_mib, {}

    def hardware(self):
        from galvatron.profile.files import HardwareProfile
        if 'hw' not in self.known:
            try: self.known['hw'] = HardwareProfile.load(self.out/'profiles'/'hardware_configs', 1, 1)
            except ValueError: self.known['hw'] = HardwareProfile.analytic('h200', 1, 1)
        return self.known['hw']

    def profile(self, case):
        from galvatron.profile.files import ModelProfile
        key = case.model, case.compile, case.precision
        if key not in self.known:
            try: self.known[key] = ModelProfile.load(folder_of(self.out, case), case.spec, case.precision)
            except ValueError: self.known[key] = ModelProfile.analytic(case.spec, 'h200', case.precision, seqs=(2048, 4096, 8192) if not case.tiny else None)
        return self.known[key]

    def predict(self, case):
        "Step time, peak of the allocator (without the context), and their parts"
        from galvatron.cost.pipeline import predict
        p = self.profile(case)
        got = predict(case.plan, case.spec, self.hardware(), p, case.options, self.memory_mib)
        m, t = got.stages[0].memory, got.stages[0].time
        return dict(ms=got.step_ms, host_ms=got.host_ms, host_most_ms=got.host_most_ms, device_ms=got.device_ms, mib=got.peak_mib-m['context'], tensors_mib=got.peak_mib-m['context']-m['allocator reserve'], context_mib=m['context'], fits=bool(got.fits), source='formulas' if p.analytic else 'profile',
                    time={k: round(float(v), 3) for k,v in t.items() if v}, memory={k: round(float(v), 1) for k,v in m.items() if v})

    def safe(self, case):
        "The same, or the reason why there is none"
        try: return self.predict(case)
        except Exception as e: return dict(source='none', reason=f'{type(e).__name__}: {e}'[:300])

def errors(rows):
    "Predicted over measured - 1 of the rows that were predicted from profiles: each, mean and worst, and what ran out of memory though it was predicted to fit"
    rows = [r for r in rows if r.get('predicted', {}).get('source')=='profile']
    done = [r for r in rows if 'ms' in r]
    out = dict(n=len(done), oom_though_predicted_to_fit=[r['case'] for r in rows if r.get('oom') and r['predicted']['fits']])
    if done: out['reserved_over_allocated'] = sorted(round(r['reserved_mib']/max(r['allocated_mib'], 1e-9), 3) for r in done) # what the reserve of the cost model stands for
    for k,mine in (('ms', 'ms'), ('mib', 'reserved_mib'), ('tensors_mib', 'allocated_mib')):
        e = {r['case']: r['predicted'][k]/r[mine]-1 for r in done if r[mine]}
        if e: out[k] = dict(mean=statistics.mean(map(abs, e.values())), worst=max(e.values(), key=abs), worst_case=max(e, key=lambda c: abs(e[c])), bias=statistics.mean(e.values()), each=e)
    return out

# ---- where the time of a step goes

KINDS = [ # first match: part of a kernel's name
    ('communication', r'nccl|symmetric_memory'), ('attention', r'flash|fmha|sdpa|attention|cudnn::fusion|cudnn_generated.*(bprop|fprop)'), ('matmul', r'gemm|nvjet|cutlass|xmma|s16816|wgmma|cublas|splitK'),
    ('optimizer', r'adam|triton.*div.*sqrt'), ('norm of gradients', r'LpNorm'), ('loss', r'triton.*(amax.*exp|exp_(log|mul)_sub|softmax|logsumexp|nll)|cross_entropy|log_softmax|nll_loss'),
    ('gradients added up', r'CUDAFunctor_add<float>|triton_poi_fused_add_copy__'), ('scaling of gradients', r'multi_tensor_apply|BinaryOpScalar'),
    ('embedding', r'embedding|indexSelect|index_select'), ('casts and copies', r'copy|CatArray'), ('fill', r'fill|Memset'), ('layers, fused', r'triton'), ('other', '')]

def kind_of(name, cat='kernel'):
    if cat.startswith('gpu_mem'): return 'memory copies' if 'cpy' in cat else 'fill'
    return next(k for k,p in KINDS if re.search(p, name, re.I))

def summarise(events, steps, top=25):
    "Device events of a chrome trace (`ts`, `dur` in us) -> ms a step by kind, top kernels, gaps, exposed copies"
    dev = [(e['ts'], e['ts']+e['dur'], e['name'], e['cat']) for e in events if e.get('cat') in ('kernel', 'gpu_memcpy', 'gpu_memset', 'cpu_op')]
    if not dev: return dict(error='no event on the device')
    dev.sort()
    busy, kernels = union([d[:2] for d in dev]), union([d[:2] for d in dev if d[3]!='gpu_memcpy'])
    copies = union([d[:2] for d in dev if d[3]=='gpu_memcpy'])
    hidden = length(copies) + length(kernels) - length(busy)
    by, name = {}, {}
    for a,b,n,c in dev:
        for d,k in ((by, kind_of(n, c)), (name, n[:160])):
            row = d.setdefault(k, dict(ms=0., calls=0)); row['ms'] += (b-a)/1e3/steps; row['calls'] += 1/steps
    gaps = sorted(((b[0]-a[1]) for a,b in zip(busy, busy[1:])), reverse=True)
    ends = {round(d[1], 3): d[2] for d in dev}; starts = {round(d[0], 3): d[2] for d in reversed(dev)}
    worst = sorted(zip(busy, busy[1:]), key=lambda p: p[0][1]-p[1][0])[:8]
    span = busy[-1][1]-busy[0][0]
    return dict(steps=steps, span_ms=span/1e3/steps, busy_ms=length(busy)/1e3/steps, idle_ms=(span-length(busy))/1e3/steps, gaps=len(gaps)/steps,
                gaps_over_10us=sum(g>10 for g in gaps)/steps, exposed_copies_ms=(length(copies)-hidden)/1e3/steps, copies_ms=length(copies)/1e3/steps,
                by_kind=dict(sorted(by.items(), key=lambda i: -i[1]['ms'])),
                top=[dict(name=k, kind=kind_of(k), **v) for k,v in sorted(name.items(), key=lambda i: -i[1]['ms'])[:top]],
                largest_gaps=[dict(us=b[0]-a[1], after=ends.get(round(a[1], 3), '?')[:100], before=starts.get(round(b[0], 3), '?')[:100]) for a,b in worst])

def traced(step, device, spec, case, steps=2):
    "Run two steps under the profiler and summarise what the device did"
    out = summarise(recorded(step, steps, device.type=='cuda'), steps)
    attn = spec.step_flops(case.batch, causal=False) - spec.step_flops(case.batch) # the half that the causal mask leaves out is as large as the one that counts
    for k,flops in (('attention', attn), ('matmul', spec.step_flops(case.batch)-attn)):
        if k in out.get('by_kind', {}): out['by_kind'][k]['model_tflops'] = flops/1e9/out['by_kind'][k]['ms'] # of the model: recomputation adds time and no FLOPs
    return out
