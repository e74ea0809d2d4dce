"Build the golden arrays with megatron-core; run with PYTHONPATH=/tmp/mcore/site"
import io, json, os, sys, tempfile, warnings
warnings.filterwarnings('ignore')
import numpy as np, torch
import megatron.core as mc
from types import SimpleNamespace
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, _get_ltor_masks_and_position_ids
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder

out = sys.argv[1]
class Tok:
    vocab_size=50000; eod=0; unique_identifiers=dict(t='t')
    def __init__(self): pass
def corpus(seed, n, low, high):
    r = np.random.RandomState(seed)
    lengths = r.randint(low, high, n).astype(np.int32)
    return lengths, r.randint(1, 50000, lengths.sum()).astype(np.uint16)
CORPORA = dict(a=(1,97,1,40), b=(2,13,5,200), c=(3,301,0,9), d=(4,3,7,30))
def write(folder):
    for name,c in CORPORA.items():
        lengths,toks = corpus(*c)
        b = IndexedDatasetBuilder(f'{folder}/{name}.bin', dtype=np.uint16)
        at = 0
        for n in lengths:
            t = toks[at:at+n].copy(); at += n
            if n: t[-1] = 0
            b.add_item(torch.from_numpy(t.astype(np.int32))); b.end_document()
        b.finalize(f'{folder}/{name}.idx')

def S(name, blend, sizes, seq, seed=1234, split='969, 30, 1', per=None): return dict(name=name, blend=blend, sizes=sizes, seq=seq, seed=seed, split=split, per=per)
SETTINGS = [
 S('one_epoch', ['a'], [40,2,0], 16, split='90,10,0'),
 S('exact_epoch', ['a'], [None,None,None], 16, split='8,1,1'),
 S('many_epochs_together', ['b'], [420,10,10], 32, seed=7, split='8,1,1'),
 S('many_epochs_last_apart', ['b'], [330,10,10], 32, seed=7, split='8,1,1'),
 S('empty_documents', ['c'], [700,60,60], 5, seed=42, split='8,1,1'),
 S('short_documents_long_samples', ['d'], [6,0,0], 128, seed=3, split='1'),
 S('uneven_split', ['c'], [300,20,0], 8, seed=1, split='969, 30, 0'),
 S('blend', ['0.3','a','0.7','b'], [200,30,20], 16, split='7,2,1'),
 S('blend_extreme', ['0.001','a','0.999','c'], [400,0,0], 16, split='1'),
 S('blend_no_weights', ['a','b','c'], [None,None,None], 16, split='8,1,1'),
 S('blend_no_weights_sized', ['a','b','c'], [100,10,9], 16, split='8,1,1'),
 S('per_split', None, [150,12,40], 24, per=[['2','a','1','c'], ['b'], ['a','d','b']], seed=99, split=None),
 S('one_token_samples', ['d'], [100,0,0], 1, seed=5, split='1'),
 S('single_weighted', ['1.0','a'], [333,0,0], 16, split='1', seed=11),
]
from megatron.core.datasets.utils import get_blend_from_list
res = {}; meta = []
with tempfile.TemporaryDirectory() as d:
    write(d)
    for n in CORPORA: res[f'idx_{n}'] = np.fromfile(f'{d}/{n}.idx', np.uint8)
    for n in CORPORA: res[f'crc_{n}'] = np.array([__import__('zlib').crc32(open(f'{d}/{n}.bin','rb').read())], np.uint32)
    where = lambda words: get_blend_from_list([f'{d}/{w}' if w in CORPORA else w for w in words])
    for s in SETTINGS:
        cfg = GPTDatasetConfig(random_seed=s['seed'], sequence_length=s['seq'], blend=where(s['blend']) if s['blend'] else None,
            blend_per_split=[where(p) for p in s['per']] if s['per'] else None, split=s['split'], tokenizer=Tok(), path_to_cache=f'{d}/cache_{s["name"]}',
            reset_position_ids=True, reset_attention_mask=True, eod_mask_loss=True, create_attention_mask=False)
        torch.distributed.get_rank = lambda *a: 0
        dss = BlendedMegatronDatasetBuilder(GPTDataset, s['sizes'], lambda: True, cfg).build()
        lens = []
        for part,ds in zip(('train','valid','test'), dss):
            want = s['sizes'][('train','valid','test').index(part)]
            if ds is None or want==0: lens.append(None); continue
            lens.append(len(ds))
            k = f"{s['name']}/{part}"
            if isinstance(ds, GPTDataset): 
                res[k+'/documents']=ds.document_index.astype(np.int32); res[k+'/samples']=ds.sample_index; res[k+'/shuffle']=ds.shuffle_index
            else:
                res[k+'/which']=ds.dataset_index; res[k+'/sample']=ds.dataset_sample_index
            crc = 0
            zlib = __import__('zlib')
            for i in range(len(ds)):
                o = ds[i]
                lab = o['labels'].numpy().copy(); lab[o['loss_mask'].numpy()==0] = -100
                crc = zlib.crc32(np.stack([o['tokens'].numpy(), lab, o['position_ids'].numpy()]).tobytes(), crc)
            res[k+'/crc'] = np.array([crc], np.uint32)
        s['lens']=lens; meta.append(s)
info = dict(megatron_core=mc.__version__, numpy=np.__version__, torch=torch.__version__, corpora=CORPORA, settings=meta)
res['info'] = np.frombuffer(json.dumps(info).encode(), np.uint8)
np.savez_compressed(out, **res)
print(os.path.getsize(out), info)
