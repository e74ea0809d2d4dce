"Where the time of a step goes on a GPU: kernels by kind, communication that no kernel hides, and idle time, from a torch profiler trace"
import json, os, re, tempfile
from collections import Counter, defaultdict

KINDS = dict(communication='nccl', attention='flash|fmha|attention|cudnn_generated|sdpa', matmul='gemm|nvjet|cutlass|xmma|cublas|splitK',
             optimizer='FusedAdam|adam|LpNorm|multi_tensor', copy='Memcpy|Memset|copy_kernel|CatArray|split_with_sizes|chunk_cat', fused='triton')

LEAD_MS = 250 # more does not help: a GPU takes about 1,000 calls ahead

def kind_of(name:str)->str:
    "Kind of a kernel by its name; what nothing else matches is `other`"
    return next((k for k,p in KINDS.items() if re.search(p, name, re.I)), 'other')

def union(spans)->list:
    "Disjoint, sorted (start, end) that cover the same points"
    out = []
    for a,b in sorted(spans):
        if out and a<=out[-1][1]: out[-1][1] = max(out[-1][1], b)
        else: out.append([a, b])
    return out

def length(spans)->float: return sum(b-a for a,b in spans)

def hidden(spans, by)->float:
    "How much of the disjoint `spans` the disjoint `by` covers"
    total, i = 0., 0
    for a,b in spans:
        while i<len(by) and by[i][1]<=a: i += 1
        j = i
        while j<len(by) and by[j][0]<b:
            total += min(b, by[j][1])-max(a, by[j][0]); j += 1
    return total

def summarise(events, steps:int, top:int=25)->dict:
    "Milliseconds a step: of kernels by kind, of communication beside each kind and beside none, of idle time, and of the longest kernels; `events` are those of a Chrome trace"
    ks = [e for e in events if e.get('ph')=='X' and e.get('cat') in ('kernel', 'gpu_memcpy', 'gpu_memset')]
    if not ks: return dict(reason='the trace has no GPU kernels')
    by_kind, by_name, spans = Counter(), Counter(), defaultdict(list)
    for e in ks:
        kind = kind_of(e['name'])
        by_kind[kind] += e['dur']; by_name[e['name'][:110]] += e['dur']
        spans[kind].append((e['ts'], e['ts']+e['dur']))
    comm = union(spans.pop('communication', []))
    spans = {k: union(s) for k,s in spans.items()}
    work = union(s for ss in spans.values() for s in ss)
    busy, begin, end = union([*comm, *work]), min(e['ts'] for e in ks), max(e['ts']+e['dur'] for e in ks)
    ms = lambda us: round(us/1e3/steps, 3)
    calls = Counter(e['name'][:110] for e in ks)
    return dict(step=ms(end-begin), compute=ms(length(work)), communication=ms(length(comm)), exposed=ms(length(comm)-hidden(comm, work)), idle=ms(end-begin-length(busy)),
                kinds={k:ms(v) for k,v in by_kind.most_common()}, beside={k:ms(hidden(comm, spans[k])) for k,_ in by_kind.most_common() if k in spans}, top=[[n, ms(v), round(calls[n]/steps, 1)] for n,v in by_name.most_common(top)])

def recorded(step, steps:int, cuda:bool)->list:
    "Events of the Chrome trace of some steps: of the GPU alone if there is one, which begins when the host is ahead of it, as in the middle of training"
    import torch
    from galvatron.profile.hardware import delay
    from torch.profiler import ProfilerActivity, profile
    if cuda: torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as p:
        delay(torch.device('cuda' if cuda else 'cpu'), LEAD_MS)
        for _ in range(steps): step()
        if cuda: torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as d:
        p.export_chrome_trace(path := os.path.join(d, 'trace.json'))
        with open(path) as f: return [e for e in json.load(f)['traceEvents'] if 'spin_kernel' not in e.get('name', '')]

def traced(step, steps:int=2, top:int=25)->dict:
    "Run `step` under the profiler and summarise; one call of it is not recorded"
    import torch
    step()
    return summarise(recorded(step, steps, torch.cuda.is_available()), steps, top)

def shown(name:str, r:dict)->str:
    "A summary as text"
    if 'reason' in r: return f"{name}: {r['reason']}"
    head = f"{name}: step {r['step']:.1f} ms = compute {r['compute']:.1f} + exposed communication {r['exposed']:.1f} (of {r['communication']:.1f}) + idle {r['idle']:.1f};  " + ', '.join(f'{k} {v:.1f}' for k,v in r['kinds'].items())
    beside = 'communication beside ' + ', '.join(f'{k} {v:.1f}' for k,v in r['beside'].items() if v) if any(r['beside'].values()) else 'nothing beside a message'
    return '\n'.join([head, f'    {beside}', *(f'    {ms:8.2f} ms  x{n:<6g} {k}' for k,ms,n in r['top'])])
