import json, os, sys, tempfile, warnings, zlib
warnings.filterwarnings('ignore')
import numpy as np, torch
import megatron.core as mc
from types import SimpleNamespace
torch.distributed.get_rank = lambda *a: 0
from megatron.core.datasets.bert_dataset import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig
from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
out = sys.argv[1]
VOCAB = 1000
# ids 0..4: [PAD] [UNK] [CLS] [SEP] [MASK]; every third id from 100 on continues a word
inv = {i:(f'##{i}' if i>=100 and i%3==0 else f'w{i}') for i in range(VOCAB)}
class Tok:
    vocab_size=VOCAB; pad=0; cls=2; sep=3; mask=4; eod=3; bos=5; eos=6; inv_vocab=inv
    additional_special_tokens_ids=list(range(VOCAB, VOCAB+100)); unique_identifiers=dict(t='t')
def corpus(seed, docs):
    r = np.random.RandomState(seed)
    counts = r.randint(0, 9, docs)                       # sentences of each document; some have none
    lengths = r.randint(1, 40, counts.sum()).astype(np.int32)
    lengths[::97] = 600                                  # sentences over 512 tokens exclude their document
    return counts, lengths, r.randint(10, VOCAB, lengths.sum()).astype(np.uint16)
SETTINGS = [
 dict(name='bert_pairs', kind='bert', seq=128, n=300, seed=1234, short=0.1, head=True, split='9,1,0', docs=150),
 dict(name='bert_single', kind='bert', seq=64, n=500, seed=7, short=0.0, head=False, split='1', docs=150),
 dict(name='bert_one_epoch', kind='bert', seq=96, n=20, seed=3, short=0.5, head=True, split='1', docs=150),
 dict(name='t5', kind='t5', seq=128, n=300, seed=1234, short=0.1, head=False, split='9,1,0', docs=150),
 dict(name='t5_short', kind='t5', seq=48, n=64, seed=5, short=0.3, head=False, split='1', docs=150),
]
res = {}
with tempfile.TemporaryDirectory() as d:
    counts,lengths,toks = corpus(11, 150)
    b = IndexedDatasetBuilder(f'{d}/s.bin', dtype=np.uint16)
    at = i = 0
    for c in counts:
        for n in lengths[i:i+c]: b.add_item(torch.from_numpy(toks[at:at+n].astype(np.int32))); at += n
        i += c
        b.end_document()
    b.finalize(f'{d}/s.idx')
    res['idx'] = np.fromfile(f'{d}/s.idx', np.uint8)
    # multimodal and other types
    b = IndexedDatasetBuilder(f'{d}/m.bin', dtype=np.int32, multimodal=True)
    b.add_document(torch.arange(7), [3,4], [0,1]); b.add_item(torch.arange(5)-2, 1); b.add_item(torch.arange(2), 0); b.end_document()
    b.finalize(f'{d}/m.idx')
    res['multimodal_idx'] = np.fromfile(f'{d}/m.idx', np.uint8); res['multimodal_bin'] = np.fromfile(f'{d}/m.bin', np.uint8)
    for s in SETTINGS:
        common = dict(random_seed=s['seed'], sequence_length=s['seq'], blend=([f'{d}/s'], None), split=s['split'], tokenizer=Tok(), path_to_cache=f'{d}/c_{s["name"]}',
            masking_probability=0.15, short_sequence_probability=s['short'], masking_do_full_word=True, masking_do_permutation=False, masking_use_longer_ngrams=False)
        if s['kind']=='bert':
            cls,cfg = BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig(classification_head=s['head'], masking_max_ngram=3, masking_use_geometric_distribution=False, **common)
        else:
            cls,cfg = T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig(sequence_length_decoder=s['seq'], masking_max_ngram=10, masking_use_geometric_distribution=True, **common)
        ds = BlendedMegatronDatasetBuilder(cls, [s["n"],0,0], lambda: True, cfg)._build_megatron_dataset_splits(f'{d}/s', [cfg.split_matrix[0],None,None], [s['n'],0,0])[0]
        res[s['name']+'/samples'] = ds.sample_index
        crc = 0
        for i in range(len(ds)):
            o = ds[i]
            lab = np.where(o['loss_mask']==1, o['labels'], -100)
            if s['kind']=='bert': a = np.concatenate([o['text'], lab, o['types'], [o['is_random']]])
            else: a = np.concatenate([o['text_enc'], o['text_dec'], lab])
            crc = zlib.crc32(a.astype(np.int64).tobytes(), crc)
        res[s['name']+'/crc'] = np.array([crc], np.uint32); s['len'] = len(ds)
    res['info'] = np.frombuffer(json.dumps(dict(megatron_core=mc.__version__, numpy=np.__version__, vocab=VOCAB, settings=SETTINGS)).encode(), np.uint8)
np.savez_compressed(out, **res)
print(os.path.getsize(out), [(s['name'],s['len']) for s in SETTINGS])
