"Data: equal to Megatron's in both directions, safe between processes, clear about bad input"
import json, os, zlib
from pathlib import Path

import numpy as np
import pytest

from galvatron.data.gpt import (BlendedDataset, DataArgs, DocumentOptions, GPTDataset, build_datasets)
from galvatron.data.indexed import IndexedDataset, IndexedWriter, dtype_for, merge, pointers, read_index
from galvatron.data.masked import BertDataset, T5Dataset
from galvatron.plan import GalvatronError

gold = np.load(Path(__file__).parent/'golden/megatron_data.npz')
info = json.loads(gold['info'].tobytes())

def corpus(seed, n, low, high):
    "The token files that megatron-core was given: random documents that end in id 0"
    rng = np.random.RandomState(seed)
    lengths = rng.randint(low, high, n).astype(np.int32)
    return lengths, rng.randint(1, 50000, lengths.sum()).astype(np.uint16)

def write_corpus(prefix, spec, **kw):
    lengths,tokens = corpus(*spec)
    tokens[np.cumsum(lengths)[lengths>0]-1] = 0
    with IndexedWriter(prefix, 'uint16', **kw) as w: w.add_documents(tokens, lengths)

@pytest.fixture(scope='module')
def corpora(tmp_path_factory):
    d = tmp_path_factory.mktemp('corpora')
    for name,spec in info['corpora'].items(): write_corpus(d/name, spec)
    return d

# Megatron, both directions

@pytest.mark.parametrize('name', list(info['corpora']))
def test_files_equal_megatron(corpora, name):
    assert np.fromfile(corpora/f'{name}.idx', np.uint8).tobytes()==gold[f'idx_{name}'].tobytes()
    assert zlib.crc32((corpora/f'{name}.bin').read_bytes())==gold[f'crc_{name}'][0]

def test_reads_megatron_index(tmp_path):
    for name,spec in info['corpora'].items():
        (tmp_path/'m.idx').write_bytes(gold[f'idx_{name}'].tobytes())
        idx = read_index(tmp_path/'m.idx')
        assert idx.dtype==np.uint16 and (idx.lengths==corpus(*spec)[0]).all() and idx.modes is None

def full_paths(words, d): return None if words is None else [str(d/w) if w in info['corpora'] else w for w in words]

@pytest.mark.parametrize('s', info['settings'], ids=lambda s: s['name'])
def test_order_equals_megatron(corpora, tmp_path, s):
    per = s['per'] or [None]*3
    args = DataArgs(full_paths(s['blend'], corpora), s['split'], *[full_paths(p, corpora) for p in per],
                    data_cache_path=str(tmp_path), eod_mask_loss=True, reset_position_ids=True)
    for part,n,ds in zip(('train','valid','test'), s['lens'], build_datasets(args, s['seq'], s['sizes'], s['seed'], eod=0)):
        if n is None: assert ds is None; continue
        assert len(ds)==n
        kind = vars(ds.indices) if isinstance(ds, GPTDataset) else dict(which=ds.which, sample=ds.sample)
        for key,a in kind.items():
            g = gold[f"{s['name']}/{part}/{key}"]
            assert a.dtype==g.dtype and np.array_equal(a, g), key
        b = ds.batch(range(len(ds)))
        crc = 0
        for row in np.stack([b['tokens'], b['labels'], b['position_ids']], axis=1): crc = zlib.crc32(row.tobytes(), crc)
        assert crc==gold[f"{s['name']}/{part}/crc"][0]

# BERT and T5

masked = np.load(Path(__file__).parent/'golden/megatron_masked.npz')
masked_info = json.loads(masked['info'].tobytes())

class PieceTokenizer:
    "As the one given to megatron-core: from 100 on, every third id continues a word"
    vocab_size,eod,sentinels = masked_info['vocab'],3,list(range(masked_info['vocab'], masked_info['vocab']+100))
    def special(self, name): return dict(pad=0, cls=2, sep=3, mask=4, bos=5, eos=6).get(name)
    def continues(self): i = np.arange(self.vocab_size); return (i>=100)&(i%3==0)

@pytest.fixture(scope='module')
def sentences(tmp_path_factory):
    rng,prefix = np.random.RandomState(11), tmp_path_factory.mktemp('sentences')/'s'
    counts = rng.randint(0, 9, 150)
    lengths = rng.randint(1, 40, counts.sum()).astype(np.int32)
    lengths[::97] = 600
    tokens = rng.randint(10, masked_info['vocab'], lengths.sum()).astype(np.uint16)
    with IndexedWriter(prefix, 'uint16') as w: w.add_documents(tokens, lengths, counts)
    assert prefix.with_suffix('.idx').read_bytes()==masked['idx'].tobytes()
    return IndexedDataset(prefix)

@pytest.mark.parametrize('s', masked_info['settings'], ids=lambda s: s['name'])
def test_masked_samples_equal_megatron(sentences, s):
    args = sentences, PieceTokenizer(), s['seq'], s['n'], s['seed'], s['split'], 'train', s['short'], None
    ds = BertDataset(*args, pairs=s['head']) if s['kind']=='bert' else T5Dataset(*args, decoder_seq_length=s['seq'])
    assert np.array_equal(ds.samples, masked[f"{s['name']}/samples"])
    crc = 0
    for i in range(len(ds)):
        o = ds[i]
        keys = ('tokens','labels','token_types') if s['kind']=='bert' else ('tokens','decoder_tokens','labels')
        row = np.concatenate([o[k] for k in keys]+([[o['is_random']]] if s['kind']=='bert' else []))
        crc = zlib.crc32(row.astype(np.int64).tobytes(), crc)
    assert crc==masked[f"{s['name']}/crc"][0]
