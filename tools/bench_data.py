"Measure the data path: indices, blends, loading, tokenising. `python tools/bench_data.py [--tokens 1e8]`"
import json, os, subprocess, sys, tempfile
from argparse import ArgumentParser
from pathlib import Path

import numpy as np

def run(code, *args):
    "Run `code` in a process of its own, so that its peak memory is its own; returns what it prints as JSON"
    r = subprocess.run([sys.executable, '-c', code, *map(str, args)], capture_output=True, text=True, timeout=600)
    if r.returncode: sys.exit(r.stderr)
    return json.loads(r.stdout.splitlines()[-1])

TAIL = '''
import json, resource
print(json.dumps(dict(s=t, mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024, **more)))'''

INDICES = '''
import sys, time
import numpy as np
from galvatron.data.gpt import GPTDataset
from galvatron.data.indexed import IndexedDataset
start = time.perf_counter()
ds = GPTDataset(IndexedDataset(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) or None, cache=False)
t, more = time.perf_counter()-start, dict(samples=len(ds))'''+TAIL

LOADER = '''
import sys, time
from galvatron.data.gpt import GPTDataset
from galvatron.data.indexed import IndexedDataset
from galvatron.data.loader import Loader
ds = GPTDataset(IndexedDataset(sys.argv[1]), 2048, cache=False)
loader = Loader(ds, 512, 8, num_workers=int(sys.argv[2]))
next(loader)
start = time.perf_counter()
n = sum(mb['tokens'].numel() for _ in range(int(sys.argv[3])) for mb in next(loader))
t, more = time.perf_counter()-start, dict(tokens=n)
loader.close()'''+TAIL

BLEND = '''
import time
from galvatron.data.gpt import blend_order
start = time.perf_counter()
blend_order([.4,.3,.2,.05,.05], 1_000_000)
t, more = time.perf_counter()-start, {}'''+TAIL

TOKENISE = '''
import sys, time
from galvatron.data.preprocess import PreprocessArgs, preprocess
if __name__=='__main__':
    start = time.perf_counter()
    r = preprocess(PreprocessArgs(input=[sys.argv[1]], output_prefix=sys.argv[2], append_eod=True, workers=int(sys.argv[3]), **eval(sys.argv[4])), quiet=True)
    t, more = time.perf_counter()-start, dict(tokens=r.tokens)'''+TAIL.replace('\n', '\n    ')

def corpus(prefix, n_tokens, mean):
    "Documents of `mean` tokens on average"
    from galvatron.data.indexed import IndexedWriter
    rng = np.random.RandomState(0)
    lengths = rng.geometric(1/mean, int(n_tokens/mean)).astype(np.int32)
    with IndexedWriter(prefix, 'uint16') as w:
        for part in np.array_split(lengths, 64): w.add_documents(rng.randint(0, 50000, part.sum()).astype(np.uint16), part)
    return int(lengths.sum())

def text_file(path, mib):
    from pydoc_data.topics import topics
    docs = [json.dumps(dict(text=t)) for t in topics.values()]
    with open(path, 'w') as f:
        while f.tell()<mib*2**20: f.write('\n'.join(docs)+'\n')
    return os.path.getsize(path)

def bpe(folder):
    "A small BPE, trained on the spot"
    from pydoc_data.topics import topics
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator(topics.values(), trainers.BpeTrainer(vocab_size=8000, special_tokens=['<|endoftext|>'], show_progress=False))
    t.save(f'{folder}/tokenizer.json')
    return f'{folder}/tokenizer.json'

def script(d, code):
    path = Path(d)/'bench.py'
    path.write_text(code)
    return path

def main():
    p = ArgumentParser(description=__doc__)
    p.add_argument('--tokens', type=float, default=1e8)
    p.add_argument('--mib', type=int, default=32, help='text to tokenise')
    a = p.parse_args()
    print(f'{os.cpu_count()} CPUs seen, {len(os.sched_getaffinity(0))} usable, NumPy {np.__version__}')
    with tempfile.TemporaryDirectory() as d:
        for mean in (500, 50):
            n = corpus(f'{d}/c{mean}', a.tokens, mean)
            for name,seq,samples in (('one epoch', 2048, 0), ('three epochs', 2048, int(2.3*n/2048))):
                r = run(INDICES, f'{d}/c{mean}', seq, samples)
                print(f'indices, {n:.2g} tokens in documents of {mean}, {name}: {r["s"]:.2f} s, {r["mib"]:.0f} MiB peak, {r["samples"]/r["s"]:,.0f} samples/s')
        for mean in (500, 50):
            for workers in (0, 1, 2):
                r = run(LOADER, f'{d}/c{mean}', workers, 12)
                print(f'loader, 512 x 2048, documents of {mean}, {workers} threads: {r["tokens"]/r["s"]/1e6:.1f} M tokens/s')
        print(f'blend of 5, a million samples: {run(BLEND)["s"]:.2f} s')
        size,tok = text_file(f'{d}/t.jsonl', a.mib),bpe(d)
        for name,kw in (('bytes', {}), ('BPE of 8,000', dict(tokenizer_type='HuggingFaceTokenizer', tokenizer_model=tok))):
            for workers in (1, 2):
                r = subprocess.run([sys.executable, script(d, TOKENISE), f'{d}/t.jsonl', f'{d}/o', str(workers), repr(kw)], capture_output=True, text=True, timeout=600)
                if r.returncode: sys.exit(r.stderr)
                r = json.loads(r.stdout.splitlines()[-1])
                print(f'tokenising, {name}, {workers} workers: {size/r["s"]/1e6:.1f} MB/s, {r["tokens"]/r["s"]/1e6:.2f} M tokens/s, {r["mib"]:.0f} MiB peak')

if __name__=='__main__': main()
