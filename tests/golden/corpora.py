"The token files and settings for which megatron-core built the golden arrays: made anew from seeds wherever they are needed"
import numpy as np

# name: (seed, documents, least and most tokens of a document); c has empty documents, d is shorter than most samples
CORPORA = dict(a=(1,97,1,40), b=(2,13,5,200), c=(3,301,0,9), d=(4,3,7,30))

def corpus(
    name:str, # Key of CORPORA
)->tuple: # [documents] lengths, [tokens] ids; each document ends in id 0
    "Random documents"
    seed,n,low,high = CORPORA[name]
    rng = np.random.RandomState(seed)
    lengths = rng.randint(low, high, n).astype(np.int32)
    tokens = rng.randint(1, 50000, lengths.sum()).astype(np.uint16)
    tokens[np.cumsum(lengths)[lengths>0]-1] = 0
    return lengths,tokens

def setting(name, blend, sizes, seq, seed=1234, split=None, per=None): return dict(name=name, blend=blend, sizes=sizes, seq=seq, seed=seed, split=split, per=per)

GPT = [
    setting('one_epoch', ['a'], [40,2,0], 16, split='90,10,0'),
    setting('exact_epoch', ['a'], [None,None,None], 16, split='8,1,1'),
    setting('many_epochs_together', ['b'], [420,10,10], 32, 7, '8,1,1'),
    setting('many_epochs_last_apart', ['b'], [330,10,10], 32, 7, '8,1,1'),
    setting('empty_documents', ['c'], [700,60,60], 5, 42, '8,1,1'),
    setting('short_documents_long_samples', ['d'], [6,0,0], 128, 3, '1'),
    setting('uneven_split', ['c'], [300,20,0], 8, 1, '969, 30, 0'),
    setting('blend', ['0.3','a','0.7','b'], [200,30,20], 16, split='7,2,1'),
    setting('blend_extreme', ['0.001','a','0.999','c'], [400,0,0], 16, split='1'),
    setting('blend_no_weights', ['a','b','c'], [None,None,None], 16, split='8,1,1'),
    setting('blend_no_weights_sized', ['a','b','c'], [100,10,9], 16, split='8,1,1'),
    setting('per_split', None, [150,12,40], 24, 99, per=[['2','a','1','c'], ['b'], ['a','d','b']]),
    setting('one_token_samples', ['d'], [100,0,0], 1, 5, '1'),
    setting('single_weighted', ['1.0','a'], [333,0,0], 16, 11, '1'),
]

PIECES = 1000 # ids of the masked corpus; from 100 on, every third continues a word

def sentences():
    "150 documents of up to 8 sentences; one sentence in 97 is too long to be used: counts, lengths, ids"
    rng = np.random.RandomState(11)
    counts = rng.randint(0, 9, 150)
    lengths = rng.randint(1, 40, counts.sum()).astype(np.int32)
    lengths[::97] = 600
    return counts,lengths,rng.randint(10, PIECES, lengths.sum()).astype(np.uint16)

MASKED = [
    dict(name='bert_pairs', kind='bert', seq=128, n=300, seed=1234, short=0.1, head=True, split='9,1,0'),
    dict(name='bert_single', kind='bert', seq=64, n=500, seed=7, short=0.0, head=False, split='1'),
    dict(name='bert_one_epoch', kind='bert', seq=96, n=20, seed=3, short=0.5, head=True, split='1'),
    dict(name='t5', kind='t5', seq=128, n=300, seed=1234, short=0.1, head=False, split='9,1,0'),
    dict(name='t5_short', kind='t5', seq=48, n=64, seed=5, short=0.3, head=False, split='1'),
]
