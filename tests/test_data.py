"Data: equal to Megatron's in both directions, safe between processes, clear about bad input"
import gzip, json, multiprocessing, os, pickle, subprocess, sys, threading, time, zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from golden.corpora import CORPORA, GPT, MASKED, PIECES, corpus, sentences

from galvatron.data.gpt import DataArgs, GPTDataset, build_datasets, build_indices, cumulative_lengths
from galvatron.data.indexed import IndexedDataset, IndexedWriter, dtype_for, merge, pointers
from galvatron.data.loader import Loader
from galvatron.data.masked import BertDataset, T5Dataset
from galvatron.data.preprocess import PreprocessArgs, data_show, preprocess, write_pydoc_topics
from galvatron.data.tokenizer import ByteTokenizer, TokenizerArgs, load_tokenizer
from galvatron.plan import GalvatronError

gold,masked = [np.load(Path(__file__).parent/f'golden/megatron_{n}.npz') for n in ('data','masked')]

def write_corpus(prefix, name):
    lengths,tokens = corpus(name)
    with IndexedWriter(prefix, 'uint16') as w: w.add_documents(tokens, lengths)

@pytest.fixture(scope='module')
def corpora(tmp_path_factory):
    d = tmp_path_factory.mktemp('corpora')
    for name in CORPORA: write_corpus(d/name, name)
    return d

# Megatron, both directions: megatron-core wrote the bytes and built the arrays, see golden/make_megatron.py

@pytest.mark.parametrize('name', CORPORA)
def test_files_equal_megatron(corpora, name):
    assert (corpora/f'{name}.idx').read_bytes()==gold[f'{name}/idx'].tobytes()
    assert zlib.crc32((corpora/f'{name}.bin').read_bytes())==gold[f'{name}/crc'][0]

def full_paths(words, d): return words and [str(d/w) if w in CORPORA else w for w in words]

@pytest.mark.parametrize('s', GPT, ids=lambda s: s['name'])
def test_order_equals_megatron(corpora, tmp_path, s):
    args = DataArgs(full_paths(s['blend'], corpora), s['split'], *[full_paths(p, corpora) for p in s['per'] or [None]*3],
                    data_cache_path=str(tmp_path), eod_mask_loss=True, reset_position_ids=True)
    for part,n,ds in zip(('train','valid','test'), s['sizes'], build_datasets(args, s['seq'], s['sizes'], s['seed'], eod=0)):
        expected = {k.rsplit('/', 1)[1]:v for k,v in gold.items() if k.startswith(f"{s['name']}/{part}/")}
        if n==0: assert ds is None and not expected; continue
        crc, = expected.pop('crc')
        ours = vars(ds.indices) if isinstance(ds, GPTDataset) else dict(which=ds.which, sample=ds.sample)
        assert ours.keys()==expected.keys()
        for key,a in ours.items(): assert a.dtype==expected[key].dtype and np.array_equal(a, expected[key]), key
        assert crc_of(ds.batch(range(len(ds))), ('tokens','labels','position_ids'))==crc

def crc_of(batch, keys): return zlib.crc32(np.stack([batch[k] for k in keys], axis=1).tobytes())

# BERT and T5

class PieceTokenizer:
    "As the one given to megatron-core"
    vocab_size,eod,sentinels = PIECES,3,list(range(PIECES, PIECES+100))
    def special(self, name): return dict(pad=0, cls=2, sep=3, mask=4, bos=5, eos=6).get(name)
    def continues(self): i = np.arange(PIECES); return (i>=100)&(i%3==0)

@pytest.fixture(scope='module')
def sentence_file(tmp_path_factory):
    prefix,(counts,lengths,tokens) = tmp_path_factory.mktemp('sentences')/'s',sentences()
    with IndexedWriter(prefix, 'uint16') as w: w.add_documents(tokens, lengths, counts)
    assert prefix.with_suffix('.idx').read_bytes()==masked['idx'].tobytes()
    return IndexedDataset(prefix)

@pytest.mark.parametrize('s', MASKED, ids=lambda s: s['name'])
def test_masked_samples_equal_megatron(sentence_file, s):
    args = sentence_file, PieceTokenizer(), s['seq'], s['n'], s['seed'], s['split'], 'train', s['short'], None
    ds = BertDataset(*args, pairs=s['head']) if s['kind']=='bert' else T5Dataset(*args, decoder_seq_length=s['seq'])
    assert np.array_equal(ds.samples, masked[f"{s['name']}/samples"])
    keys = ('tokens','labels','token_types','is_random') if s['kind']=='bert' else ('tokens','decoder_tokens','labels')
    crc = 0
    for i in range(len(ds)): crc = zlib.crc32(np.hstack([ds[i][k] for k in keys]).astype(np.int64).tobytes(), crc)
    assert crc==masked[f"{s['name']}/crc"][0]

# Files: every type, both ways of reading, multimodal, damage

def test_multimodal_equals_megatron(tmp_path):
    for end in ('idx','bin'): (tmp_path/f'm.{end}').write_bytes(masked[f'multimodal/{end}'].tobytes())
    theirs = IndexedDataset(tmp_path/'m')
    assert theirs.index.modes.tolist()==[0,1,1,0] and theirs.documents.tolist()==[0,2,4]
    with IndexedWriter(tmp_path/'o', 'int32', multimodal=True) as w:
        w.add_document(np.arange(7), [3,4], [0,1])
        w.add_sequence(np.arange(5)-2, 1)
        w.add_sequence(np.arange(2))
        w.end_document()
    for end in ('idx','bin'): assert (tmp_path/f'o.{end}').read_bytes()==(tmp_path/f'm.{end}').read_bytes()

@pytest.mark.parametrize('dtype', ['uint8','int8','int16','int32','int64','float64','float32','uint16'])
def test_every_type_and_both_readers(tmp_path, dtype):
    top = 1e30 if dtype.startswith('float') else np.iinfo(dtype).max
    docs = [np.array([0,1,top], dtype), np.array([], dtype), np.array([top], dtype)]
    with IndexedWriter(tmp_path/'d', dtype) as w:
        for d in docs: w.add_document(d)
    for mmap in (True,False):
        ds = pickle.loads(pickle.dumps(IndexedDataset(tmp_path/'d', mmap=mmap)))
        assert ds.dtype==dtype and all(np.array_equal(a, b) for a,b in zip(ds[:], docs)) and ds.get(0,1,2).tolist()==docs[0][1:].tolist()

def test_both_readers_give_the_same_samples(corpora):
    a,b = [GPTDataset(IndexedDataset(corpora/'a', mmap=m), 16, 50, cache=False).batch(range(50)) for m in (True,False)]
    assert all(np.array_equal(a[k], b[k]) for k in a)

def test_large_offsets_and_wide_indices(monkeypatch):
    assert pointers(np.full(3, 2**29, np.int32), 4).tolist()==[0, 2**31, 2**32]
    lengths, args = np.array([3,0,5,9,4], np.int32), (range(5), 9, 4, 3)
    narrow = build_indices(lengths, *args)
    monkeypatch.setattr('galvatron.data.gpt.INT32', 4)
    wide = build_indices(lengths, *args)
    assert (narrow.documents.dtype, narrow.samples.dtype)==(np.int32, np.int32) and (wide.documents.dtype, wide.samples.dtype)==(np.int64, np.int64)
    assert all(np.array_equal(a, b) for a,b in zip(vars(narrow).values(), vars(wide).values()))

DAMAGE = {
    'magic': (lambda b: b'XX'+b[2:], 'not a Megatron index'),
    'version': (lambda b: b[:9]+b'\x02'+b[10:], 'version 2, only version 1'),
    'type': (lambda b: b[:17]+b'\x09'+b[18:], 'unknown token type 9'),
    'short': (lambda b: b[:-3], 'truncated'),
    'header': (lambda b: b[:20], 'truncated: 20 bytes'),
    'empty': (lambda b: b'', 'not a Megatron index'),
    'boundaries': (lambda b: b[:-8]+(5).to_bytes(8,'little'), 'do not run from 0 to'),
    'huge': (lambda b: b[:18]+(2**60).to_bytes(8,'little')+b[26:], 'truncated'),
}
@pytest.mark.parametrize('kind', DAMAGE)
def test_damaged_index(tmp_path, corpora, kind):
    change,says = DAMAGE[kind]
    (tmp_path/'x.idx').write_bytes(change((corpora/'a.idx').read_bytes()))
    (tmp_path/'x.bin').write_bytes((corpora/'a.bin').read_bytes())
    with pytest.raises(GalvatronError, match=says): IndexedDataset(tmp_path/'x')

def test_damaged_tokens_and_missing_files(tmp_path, corpora):
    (tmp_path/'x.idx').write_bytes((corpora/'a.idx').read_bytes())
    with pytest.raises(GalvatronError, match='x.bin: no such file'): IndexedDataset(tmp_path/'x')
    (tmp_path/'x.bin').write_bytes((corpora/'a.bin').read_bytes()[:-2])
    with pytest.raises(GalvatronError, match='the file is truncated'): IndexedDataset(tmp_path/'x')

def test_edges_of_the_token_type(tmp_path):
    with IndexedWriter(tmp_path/'d', dtype_for(65_499)) as w: w.add_document([0, 65_535])
    assert IndexedDataset(tmp_path/'d')[0].tolist()==[0, 65_535]
    for ids in ([65_536], [-1]):
        with pytest.raises(GalvatronError, match='uint16 holds 0..65535'), IndexedWriter(tmp_path/'e', 'uint16') as w: w.add_document(ids)
    assert dtype_for(65_536)==np.int32 and sorted(os.listdir(tmp_path))==['d.bin','d.idx']

def test_merge_equals_writing_at_once(tmp_path, corpora):
    merge([corpora/'a', corpora/'c', corpora/'d'], tmp_path/'m')
    with IndexedWriter(tmp_path/'w', 'uint16') as w:
        for n in 'acd':
            for d in IndexedDataset(corpora/n)[:]: w.add_document(d)
    for end in ('.idx','.bin'): assert (tmp_path/f'm{end}').read_bytes()==(tmp_path/f'w{end}').read_bytes()
    with IndexedWriter(tmp_path/'i', 'int32') as w: w.add_document([1])
    with pytest.raises(GalvatronError, match='token type int32, the others have uint16'): merge([corpora/'a', tmp_path/'i'], tmp_path/'no')

def test_command_line_merge(tmp_path):
    from galvatron.cli import main
    for n in 'ab':
        write_lines(tmp_path/f'{n}.jsonl', texts(5))
        assert main(['preprocess-data', '--input', str(tmp_path/f'{n}.jsonl'), '--output-prefix', str(tmp_path/n), '--append-eod'])==0
    parts, out = [str(tmp_path/f'{n}_text_document') for n in 'ab'], str(tmp_path/'out/all')
    assert main(['data', 'merge', '--input', *parts, '--output-prefix', out])==0
    ds = IndexedDataset(out)
    assert ds.n_documents==10 and ds[5].tolist()==ds[0].tolist() and json.loads(Path(out+'.json').read_text())['eod']==256
    assert main(['data', 'merge', '--input', str(tmp_path), '--output-prefix', out+'2'])==0 # a folder: everything in it
    assert (tmp_path/'out/all2.bin').read_bytes()==(tmp_path/'out/all.bin').read_bytes()
    write_pydoc_topics(tmp_path/'t')
    (tmp_path/'t.json').write_text('{"tokenizer_type":"GPT2BPETokenizer","n_ids":50257,"eod":50256}')
    for bad in ([parts[0], str(tmp_path/'t')], [str(tmp_path/'none')], [str(tmp_path/'out/empty')]):
        assert main(['data', 'merge', '--input', *bad, '--output-prefix', str(tmp_path/'no')])==2 and not list(tmp_path.glob('no*'))

# Bad wishes get an answer at once, where Megatron loops for ever or fails later

@pytest.mark.parametrize('kw,says', [
    (dict(split='1,0,0', part='valid', num_samples=3), 'holds 0 of 97 sequences and no token'),
    (dict(seq_length=10**6), 'one sample needs seq_length'),
    (dict(split='1,-1'), 'expected one to three weights'),
    (dict(part='dev'), "part 'dev' is not one of train, valid, test"),
    (dict(seq_length=0), 'seq_length 0 must be at least 1'),
])
def test_impossible_datasets(corpora, kw, says):
    start = time.perf_counter()
    with pytest.raises(GalvatronError, match=says): GPTDataset(IndexedDataset(corpora/'a'), **dict(dict(seq_length=16, cache=False), **kw))
    assert time.perf_counter()-start<5

def damaged(corpora, tmp_path, where, value, n):
    raw = bytearray((corpora/'a.idx').read_bytes())
    raw[where:where+n] = value.to_bytes(n, 'little', signed=True)
    (tmp_path/'x.idx').write_bytes(raw)
    (tmp_path/'x.bin').write_bytes((corpora/'a.bin').read_bytes())
    return IndexedDataset(tmp_path/'x', mmap=n==8)

def test_damage_inside_the_index(corpora, tmp_path):
    with pytest.raises(GalvatronError, match='negative length'): GPTDataset(damaged(corpora, tmp_path, 34, -5, 4), 16, cache=False)
    for mmap in (True,False):
        ds = damaged(corpora, tmp_path, 34+4*97+8*3, 2**50, 8)
        ds = IndexedDataset(tmp_path/'x', mmap)
        with pytest.raises(GalvatronError, match='x.bin: tokens .* lie outside'): ds[3]

def test_wishes_beyond_memory(corpora):
    with pytest.raises(GalvatronError, match='10,000,000,000,000 samples of 16 tokens would take .* GiB'): GPTDataset(IndexedDataset(corpora/'a'), 16, 10**13, cache=False)

@pytest.mark.parametrize('words,says', [
    (['inf','a','1','b'], 'must be finite'), (['nan','a','1','b'], 'must be finite'), (['-1','a','1','b'], 'not negative'), (['0','a','0','b'], 'not all zero')])
def test_impossible_weights(corpora, words, says):
    with pytest.raises(GalvatronError, match=says): build_datasets(DataArgs(full_paths(words, corpora)), 16, (10,0,0))

def test_extreme_weights_equal_the_rule():
    "Against the rule written with exact fractions, where no tie is near"
    from fractions import Fraction
    from galvatron.data.gpt import blend_order
    for w in ([.001,.999], [1e-9,1-1e-9], [.3125,.6875], [.1,.2,.3,.4-1e-7,1e-7]):
        taken, exact = [0]*len(w), []
        for k in range(3000):
            behind = [Fraction(x)*max(k, 1)-t for x,t in zip(w, taken)]
            exact.append(behind.index(max(behind))); taken[exact[-1]] += 1
        which,sample = blend_order(w, 3000)
        assert (which!=exact).mean()<.01 and abs(np.bincount(which, minlength=len(w))-np.bincount(exact, minlength=len(w))).max()<=1
        for i in range(len(w)): assert sample[which==i].tolist()==list(range((which==i).sum()))

def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path/'file').write_text('')
    write_lines(tmp_path/'a.jsonl', texts(3))
    with pytest.raises(GalvatronError, match='cannot be written there'):
        preprocess(PreprocessArgs(input=[str(tmp_path/'a.jsonl')], output_prefix=str(tmp_path/'file/x')), quiet=True)

def test_only_empty_documents(tmp_path):
    with IndexedWriter(tmp_path/'e', 'uint16') as w: w.add_documents([], [0,0,0])
    assert IndexedDataset(tmp_path/'e').n_tokens==0
    with pytest.raises(GalvatronError, match='no token'): GPTDataset(IndexedDataset(tmp_path/'e'), 4, 10)

def test_sample_past_the_end(corpora):
    ds = GPTDataset(IndexedDataset(corpora/'a'), 16, cache=False)
    with pytest.raises(IndexError): ds[len(ds)]

# Caches

ONE_RANK = '''
import sys, zlib
from galvatron.data.gpt import GPTDataset
from galvatron.data.indexed import IndexedDataset
sys.stdin.readline()
ds = GPTDataset(IndexedDataset(sys.argv[1]), 8, 2000, cache=sys.argv[2])
print(zlib.crc32(ds.batch(range(2000))['tokens'].tobytes()))'''

def test_ranks_that_start_together(corpora, tmp_path):
    ranks = [subprocess.Popen([sys.executable, '-c', ONE_RANK, corpora/'c', tmp_path/('node1' if r<3 else 'node2')], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) for r in range(4)]
    try:
        for r in ranks: r.stdin.write('\n'); r.stdin.flush()
        sums = {r.communicate(timeout=30)[0] for r in ranks}
    finally:
        for r in ranks: r.kill()
    assert len(sums)==1 and sums!={''}
    for node in ('node1','node2'): assert len([p for p in (tmp_path/node).iterdir() if p.is_dir()])==1 # nothing half-made is left

def cached_order(prefix, cache, n=300): return GPTDataset(IndexedDataset(prefix), 8, n, cache=cache).indices

def test_cache_is_used_repaired_and_never_stale(tmp_path):
    write_corpus(tmp_path/'d', 'a')
    first = cached_order(tmp_path/'d', None)
    cached_order(tmp_path/'d', tmp_path/'c')
    again = cached_order(tmp_path/'d', tmp_path/'c')
    assert isinstance(again.shuffle, np.memmap) and np.array_equal(first.shuffle, again.shuffle)
    file, = (tmp_path/'c').glob('*/samples.npy')
    file.write_bytes(file.read_bytes()[:200])
    assert np.array_equal(cached_order(tmp_path/'d', tmp_path/'c').samples, first.samples)
    next((tmp_path/'c').glob('*/shuffle.npy')).unlink()
    assert np.array_equal(cached_order(tmp_path/'d', tmp_path/'c').samples, first.samples)
    write_corpus(tmp_path/'d', 'b') # other contents under the same name
    assert not np.array_equal(cached_order(tmp_path/'d', tmp_path/'c').samples, first.samples)

def test_read_only_folder(corpora, tmp_path, monkeypatch):
    def refuse(*a, **kw): raise PermissionError(13, 'Permission denied')
    monkeypatch.setattr(Path, 'mkdir', refuse) # root may write anywhere, so chmod would prove nothing
    with pytest.warns(UserWarning, match='Permission denied.*stay in memory'): order = cached_order(corpora/'a', tmp_path/'c')
    assert len(order.shuffle)>=300 and not (tmp_path/'c').exists()

# Loading

def rows_of(rank, dp):
    "What a model with `dp` data-parallel groups asks for"
    return lambda bsz,chunks: [range(c*bsz//chunks+bsz//chunks//dp*rank, c*bsz//chunks+bsz//chunks//dp*(rank+1)) for c in range(chunks)]

def batches(ds, dp, start, n, bsz=8, chunks=2, kind='single'):
    "n global batches, put together from dp ranks"
    ranks = [Loader(ds, bsz, chunks, rows_of(r, dp), start, kind) for r in range(dp)]
    return [torch.cat([mb['tokens'] for c in zip(*step) for mb in c]) for step in zip(*([next(r) for _ in range(n)] for r in ranks))]

@pytest.mark.parametrize('kind', ['single','cyclic'])
def test_resume_with_another_degree(corpora, kind):
    ds = GPTDataset(IndexedDataset(corpora/'a'), 16, 41, cache=False) # batches of 8 do not divide the dataset
    whole = batches(ds, 1, 0, 16, kind=kind)
    for stop in (1,5,6,11):
        parts = batches(ds, 4, 0, stop, kind=kind)+batches(ds, 2, 8*stop, 16-stop, kind=kind)
        assert all(torch.equal(a, b) for a,b in zip(whole, parts, strict=True))

def test_blend_through_the_loader(corpora):
    args = DataArgs(['0.3', str(corpora/'a'), '0.7', str(corpora/'b')], '1', eod_mask_loss=True, reset_position_ids=True, reset_attention_mask=True)
    ds, = [d for d in build_datasets(args, 16, (64,0,0), eod=0) if d]
    mb = next(Loader(ds, 16))[0]
    assert {k:tuple(v.shape) for k,v in mb.items()}==dict.fromkeys(['tokens','labels','position_ids','segment_ids'], (16,16))
    assert (mb['labels'][mb['tokens']==0]==-100).all() and (mb['position_ids'][:,1:][mb['tokens'][:,:-1]==0]==0).all()
    cu = cumulative_lengths(mb['segment_ids'].numpy())
    assert cu[0]==0 and cu[-1]==256 and len(cu)-1==16+int(mb['segment_ids'].max(1).values.sum())

def test_loader_speed(tmp_path):
    rng = np.random.RandomState(0)
    with IndexedWriter(tmp_path/'d', 'uint16') as w: w.add_documents(rng.randint(0, 50_000, 2_000_000).astype(np.uint16), [400]*5000)
    loader = Loader(GPTDataset(IndexedDataset(tmp_path/'d'), 2048, 2048, cache=False), 512, 8)
    next(loader)
    start = time.perf_counter()
    n = sum(mb['tokens'].numel() for mb in next(loader))
    loader.close()
    assert n==512*2048 and n/(time.perf_counter()-start)>1e6

# Preprocessing

def texts(n): return [{'text':f'Document {i}. '+'Größe 🚀 and more. '*(i%7), 'title':f'T{i}'} for i in range(n)]

def write_lines(path, objs):
    data = '\n'.join(json.dumps(o, ensure_ascii=False) for o in objs).encode()
    path.write_bytes(gzip.compress(data) if path.suffix=='.gz' else data)
    return str(path)

def test_killed_worker(tmp_path):
    "One line and nothing half-made, where a pool of processes would wait for ever"
    write_lines(tmp_path/'a.jsonl', texts(20_000))
    def kill():
        while not (found := multiprocessing.active_children()): time.sleep(.01)
        found[0].kill()
    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(GalvatronError, match='was killed'): preprocess(PreprocessArgs(input=[str(tmp_path/'a.jsonl')], output_prefix=str(tmp_path/'b'), workers=2), quiet=True)
    killer.join()
    assert os.listdir(tmp_path)==['a.jsonl']

def test_workers_and_compression_change_nothing(tmp_path):
    objs = texts(3000)
    write_lines(tmp_path/'a.jsonl', objs[:1000]), write_lines(tmp_path/'b.jsonl.gz', objs[1000:])
    write_lines(tmp_path/'all.jsonl', objs)
    results = {}
    for name,files,workers in (('one', ['all.jsonl'], 1), ('two', ['a.jsonl','b.jsonl.gz'], 2)):
        preprocess(PreprocessArgs(input=[str(tmp_path/f) for f in files], output_prefix=str(tmp_path/name), json_keys=['text','title'], append_eod=True, workers=workers), quiet=True)
        results[name] = [(tmp_path/f'{name}_{k}_document{e}').read_bytes() for k in ('text','title') for e in ('.bin','.idx')]
    assert results['one']==results['two']
    ds = IndexedDataset(tmp_path/'one_text_document')
    assert ByteTokenizer().decode(ds[10])==objs[10]['text'] and ds[10][-1]==256

def test_bad_lines_and_strict(tmp_path, capsys):
    (tmp_path/'a.jsonl').write_bytes(b'{"text":"ok"}\n{broken\n[1]\n{"text":7}\n{"text":"\xff"}\n{"body":"x"}\n\n{"text":""}\n{"text":"\\ud800"}\n')
    args = PreprocessArgs(input=[str(tmp_path/'a.jsonl')], output_prefix=str(tmp_path/'o'))
    report = preprocess(args, quiet=True)
    assert (report.documents, report.bad)==(1, 6)
    err = capsys.readouterr().err
    assert all(s in err for s in ('a.jsonl:2: not JSON', 'a.jsonl:3: not a JSON object', ":4: 'text' is int", ':5: not UTF-8', ":6: no key 'text'"))
    assert ':9:' not in err # five are shown, all are counted
    args.strict, args.output_prefix = True, str(tmp_path/'p')
    with pytest.raises(GalvatronError, match='a.jsonl:2: not JSON'): preprocess(args, quiet=True)
    assert not list(tmp_path.glob('p*'))

def test_cut_off_archive(tmp_path):
    write_lines(tmp_path/'a.jsonl.gz', texts(500))
    (tmp_path/'a.jsonl.gz').write_bytes((tmp_path/'a.jsonl.gz').read_bytes()[:-30])
    with pytest.raises(GalvatronError, match='a.jsonl.gz: cannot be read, or is cut off'):
        preprocess(PreprocessArgs(input=[str(tmp_path/'a.jsonl.gz')], output_prefix=str(tmp_path/'o')), quiet=True)
    assert [p.name for p in tmp_path.iterdir()]==['a.jsonl.gz']

def test_killed_in_the_middle(tmp_path):
    write_lines(tmp_path/'a.jsonl', texts(40_000))
    code = f'''
from galvatron.data import preprocess as p
real, n = p._encode, []
def slow(*a):
    n.append(1)
    if len(n)==2: print('half way', flush=True); import time; time.sleep(60)
    return real(*a)
p._encode = slow
p.preprocess(p.PreprocessArgs(input=[{str(tmp_path/'a.jsonl')!r}], output_prefix={str(tmp_path/'o')!r}), quiet=True)'''
    r = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True)
    try: assert r.stdout.readline()=='half way\n'
    finally: r.kill(); r.wait()
    assert not list(tmp_path.glob('*.idx')) and not (tmp_path/'o_text_document.bin').exists()

def test_sentences_for_masked_models(tmp_path):
    vocab = ['[PAD]','[UNK]','[CLS]','[SEP]','[MASK]',*'abcdefghij','##s','.']
    (tmp_path/'vocab.txt').write_text('\n'.join(vocab))
    write_lines(tmp_path/'a.jsonl', [dict(text='A b cs. D e. F g h i. J a.') for _ in range(5)])
    tok = dict(tokenizer_type='BertWordPieceLowerCase', vocab_file=str(tmp_path/'vocab.txt'), vocab_extra_ids=10)
    args = PreprocessArgs(input=[str(tmp_path/'a.jsonl')], output_prefix=str(tmp_path/'o'), split_sentences=True, **tok)
    report = preprocess(args, quiet=True)
    ds = IndexedDataset(report.prefixes[0])
    assert (ds.n_documents, len(ds), report.prefixes[0].endswith('o_text_sentence'))==(5, 20, True)
    assert ds[0].tolist()==[vocab.index(t) for t in ('a','b','c','##s','.')]
    assert len(BertDataset(ds, load_tokenizer(args), 24, 10))>=10 and len(T5Dataset(ds, load_tokenizer(args), 24, 10))>=10

def test_nothing_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr('socket.socket.connect', lambda *a: pytest.fail('tried to reach the network'))
    monkeypatch.delenv('HF_HUB_OFFLINE', raising=False)
    with pytest.raises(GalvatronError, match='never downloaded'): load_tokenizer(TokenizerArgs('HuggingFaceTokenizer', 'gpt2'))
    (tmp_path/'empty').mkdir()
    with pytest.raises(GalvatronError, match='no tokenizer that transformers can load'): load_tokenizer(TokenizerArgs('HuggingFaceTokenizer', str(tmp_path/'empty')))

def test_huggingface_folder(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    engine = Tokenizer(models.WordLevel({'a':0,'b':1,'<unk>':2,'</s>':7}, unk_token='<unk>'))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=engine, eos_token='</s>', unk_token='<unk>', model_max_length=2).save_pretrained(tmp_path)
    tok = load_tokenizer(TokenizerArgs('HuggingFaceTokenizer', str(tmp_path)))
    assert tok.encode('a b c a b')==[0,1,2,0,1] and (tok.eod, tok.vocab_size)==(7, 8) # no truncation; a gap in the ids

def test_show(tmp_path):
    write_pydoc_topics(tmp_path/'t')
    out = data_show(str(tmp_path/'t'))
    assert 'uint16 tokens' in out and 'as text: ' in out and 'documents' in out

def test_torch_is_not_needed():
    code = 'import sys, galvatron.data.indexed, galvatron.data.gpt, galvatron.data.preprocess, galvatron.data.masked, galvatron.data.images, galvatron.data.loader; sys.exit("torch" in sys.modules or "transformers" in sys.modules)'
    assert subprocess.run([sys.executable, '-c', code], timeout=60).returncode==0

def test_a_result_that_cannot_be_written_leaves_the_one_before_whole(tmp_path, monkeypatch):
    "Tokens, index, and what PREFIX.json says of them; a dataset that is replaced takes all three with it"
    from galvatron.data import indexed
    (tmp_path/'text.txt').write_text('one\n\ntwo\n')
    make = lambda **kw: preprocess(PreprocessArgs(input=[str(tmp_path/'text.txt')], output_prefix=str(tmp_path/'out'), **kw), quiet=True)
    prefix, = make(append_eod=True).prefixes
    files = lambda: {p.name:p.read_bytes() for p in tmp_path.glob('out*')}
    before = files()
    def full(*args): raise OSError(28, 'No space left on device')
    with monkeypatch.context() as m:
        m.setattr(indexed, 'write_index', full)
        with pytest.raises(GalvatronError, match='cannot be written to its end .No space left'): make()
    assert files()==before and f'{Path(prefix).name}.json' in before
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for n in 6, 400: # as of a disk that is full at the end, and long before
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            with pytest.raises(GalvatronError, match='cannot be written to its end'), IndexedWriter(prefix) as w:
                for _ in range(n): w.add_document(np.arange(50))
        finally: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert files()==before
    with IndexedWriter(prefix) as w: w.add_document([1, 2])
    assert not Path(f'{prefix}.json').exists()
