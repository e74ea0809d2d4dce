"""Have megatron-core build the golden arrays of the data tests.

    pip install --no-deps --target /tmp/megatron megatron-core==0.16.1
    PYTHONPATH=/tmp/megatron python tests/golden/make_megatron.py

It writes megatron_data.npz and megatron_masked.npz beside this file. Not run by the tests, which need neither megatron-core nor a compiler."""
import json, tempfile, zlib
from pathlib import Path

import megatron.core
import numpy as np
import torch
from megatron.core.datasets.bert_dataset import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig
from megatron.core.datasets.utils import get_blend_from_list

from corpora import CORPORA, GPT, MASKED, PIECES, corpus, sentences

HERE = Path(__file__).parent
PARTS = 'train','valid','test'
torch.distributed.get_rank = lambda *a: 0 # caches ask for a rank even when nothing is distributed

class Tokenizer:
    vocab_size,eod,unique_identifiers = 50000,0,dict(tokenizer='golden')

class PieceTokenizer:
    vocab_size,pad,cls,sep,mask,eod,bos,eos = PIECES,0,2,3,4,3,5,6
    inv_vocab = {i:f'##{i}' if i>=100 and i%3==0 else f'w{i}' for i in range(PIECES)}
    additional_special_tokens_ids,unique_identifiers = list(range(PIECES, PIECES+100)),dict(tokenizer='golden')

def raw(path): return np.fromfile(path, np.uint8)
def crc(rows):
    res = 0
    for r in rows: res = zlib.crc32(np.ascontiguousarray(r, np.int64).tobytes(), res)
    return np.array([res], np.uint32)

def save(name, res):
    about = dict(megatron_core=megatron.core.__version__, numpy=np.__version__, torch=torch.__version__)
    np.savez_compressed(HERE/name, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **res)
    print(name, (HERE/name).stat().st_size, 'bytes', about)

def write(prefix, counts, lengths, tokens):
    b = IndexedDatasetBuilder(f'{prefix}.bin', dtype=np.uint16)
    parts = iter(np.split(tokens.astype(np.int32), np.cumsum(lengths)[:-1]))
    for n in counts:
        for _ in range(n): b.add_item(torch.from_numpy(next(parts)))
        b.end_document()
    b.finalize(f'{prefix}.idx')

def gpt_row(sample):
    labels = np.where(sample['loss_mask'].numpy()==0, -100, sample['labels'].numpy())
    return np.stack([sample['tokens'].numpy(), labels, sample['position_ids'].numpy()])

def gpt(d):
    res = {}
    for name in CORPORA:
        lengths,tokens = corpus(name)
        write(f'{d}/{name}', [1]*len(lengths), lengths, tokens)
        res[f'{name}/idx'],res[f'{name}/crc'] = raw(f'{d}/{name}.idx'),np.array([zlib.crc32(raw(f'{d}/{name}.bin').tobytes())], np.uint32)
    where = lambda words: words and get_blend_from_list([f'{d}/{w}' if w in CORPORA else w for w in words])
    for s in GPT:
        cfg = GPTDatasetConfig(random_seed=s['seed'], sequence_length=s['seq'], blend=where(s['blend']), split=s['split'], tokenizer=Tokenizer(),
            blend_per_split=s['per'] and [where(p) for p in s['per']], path_to_cache=f'{d}/{s["name"]}',
            reset_position_ids=True, reset_attention_mask=True, eod_mask_loss=True, create_attention_mask=False)
        for part,n,ds in zip(PARTS, s['sizes'], BlendedMegatronDatasetBuilder(GPTDataset, s['sizes'], lambda: True, cfg).build()):
            if ds is None or n==0: continue
            names = dict(documents='document_index', samples='sample_index', shuffle='shuffle_index') if isinstance(ds, GPTDataset) else dict(which='dataset_index', sample='dataset_sample_index')
            for ours,theirs in names.items(): res[f'{s["name"]}/{part}/{ours}'] = getattr(ds, theirs)
            res[f'{s["name"]}/{part}/crc'] = crc(gpt_row(ds[i]) for i in range(len(ds)))
    save('megatron_data.npz', res)

def multimodal(d):
    b = IndexedDatasetBuilder(f'{d}/m.bin', dtype=np.int32, multimodal=True)
    b.add_document(torch.arange(7), [3,4], [0,1])
    b.add_item(torch.arange(5)-2, 1)
    b.add_item(torch.arange(2), 0)
    b.end_document()
    b.finalize(f'{d}/m.idx')
    return {f'multimodal/{end}':raw(f'{d}/m.{end}') for end in ('idx','bin')}

def masked_dataset(d, s):
    common = dict(random_seed=s['seed'], sequence_length=s['seq'], blend=([f'{d}/s'], None), split=s['split'], tokenizer=PieceTokenizer(), path_to_cache=f'{d}/{s["name"]}',
        masking_probability=0.15, short_sequence_probability=s['short'], masking_do_full_word=True, masking_do_permutation=False, masking_use_longer_ngrams=False)
    if s['kind']=='bert':
        cls,cfg = BERTMaskedWordPieceDataset,BERTMaskedWordPieceDatasetConfig(classification_head=s['head'], masking_max_ngram=3, masking_use_geometric_distribution=False, **common)
    else:
        cls,cfg = T5MaskedWordPieceDataset,T5MaskedWordPieceDatasetConfig(sequence_length_decoder=s['seq'], masking_max_ngram=10, masking_use_geometric_distribution=True, **common)
    return BlendedMegatronDatasetBuilder(cls, [s['n'],0,0], lambda: True, cfg)._build_megatron_dataset_splits(f'{d}/s', [cfg.split_matrix[0],None,None], [s['n'],0,0])[0]

def masked_row(kind, o):
    labels = np.where(o['loss_mask']==1, o['labels'], -100)
    return np.concatenate([o['text'], labels, o['types'], [o['is_random']]] if kind=='bert' else [o['text_enc'], o['text_dec'], labels])

def masked(d):
    write(f'{d}/s', *sentences())
    res = multimodal(d) | dict(idx=raw(f'{d}/s.idx'))
    for s in MASKED:
        ds = masked_dataset(d, s)
        res[f'{s["name"]}/samples'],res[f'{s["name"]}/crc'] = ds.sample_index,crc(masked_row(s['kind'], ds[i]) for i in range(len(ds)))
    save('megatron_masked.npz', res)

if __name__=='__main__':
    with tempfile.TemporaryDirectory() as d:
        gpt(d)
        masked(d)
