"Train tiny models under plans and compare everything with one process, in double precision"
import functools, json, random, time, traceback, warnings
from collections import Counter
from contextlib import nullcontext

import torch, torch.distributed as dist
from torch.distributed.tensor import DTensor

from galvatron.checkpoint.distributed import local_box, rectangles
from galvatron.data.loader import DOCUMENT_KEYS
from galvatron.model_spec import ModelSpec
from galvatron.plan import LayerStrategy, Plan, RunOptions, VocabStrategy
from galvatron.runtime.collectives import count_collectives
from galvatron.runtime.groups import Place
from galvatron.runtime.optim import adamw, clip_grad_norm
from galvatron.runtime.schedule import Pipeline
from galvatron.runtime.stage import StageModel

SEQ, STEPS, VOCAB = 16, 3, 61
CONFIGS = dict( # 8 query heads, 2 key heads; a vocabulary that nothing divides
    llama=dict(model_type='llama', vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, initializer_range=.1),
    qwen3=dict(model_type='qwen3', vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, head_dim=8, initializer_range=.1),
    gpt=dict(model_type='gpt2', vocab_size=61, n_embd=32, n_layer=4, n_head=8, n_positions=SEQ, attn_pdrop=0., resid_pdrop=0., embd_pdrop=0., initializer_range=.1))
CONFIGS |= dict(qwen2=dict(CONFIGS['llama'], model_type='qwen2'), mistral=dict(CONFIGS['llama'], model_type='mistral', sliding_window=5)) # biases of queries, keys and values; a window
CONFIGS |= dict( # what six ranks divide
    llama6=dict(CONFIGS['llama'], hidden_size=48, num_attention_heads=12, num_key_value_heads=6),
    gpt6=dict(CONFIGS['gpt'], n_embd=48, n_head=12, n_positions=24))

CONFIGS |= dict( # pictures; nothing divides the 17 tokens of the first, nor the classes
    vit=dict(model_type='vit', hidden_size=32, intermediate_size=48, num_attention_heads=4, image_size=16, patch_size=4, num_labels=7, hidden_dropout_prob=0., attention_probs_dropout_prob=0., initializer_range=.1),
    swin=dict(model_type='swin', embed_dim=16, num_heads=[4, 4, 8], window_size=2, image_size=32, patch_size=4, num_labels=7, drop_path_rate=0., initializer_range=.1))
CONFIGS |= dict(baichuan=dict(CONFIGS['llama'], model_type='baichuan', num_attention_heads=4, num_key_value_heads=4, alibi=True, norm_head=True)) # slopes on the scores, unit rows in the head
DEPTHS = {1: [1], 2: [1, 1], 3: [2, 1], 4: [2, 1, 1]} # layers of each stage of a Swin
_t5 = dict(model_type='t5', vocab_size=61, d_model=32, d_kv=4, d_ff=48, num_heads=8, relative_attention_num_buckets=8, relative_attention_max_distance=12, dropout_rate=0., initializer_factor=1.)
CONFIGS |= dict( # encoders; one with a gated feed-forward part and an unscaled head
    bert=dict(model_type='bert', vocab_size=61, hidden_size=32, intermediate_size=48, num_attention_heads=8, max_position_embeddings=SEQ, hidden_dropout_prob=0., attention_probs_dropout_prob=0., initializer_range=.1),
    t5=_t5, t5_gated=dict(_t5, feed_forward_proj='gated-gelu', tie_word_embeddings=False))

@functools.cache
def spec_of(kind, layers=4):
    config = dict(CONFIGS[kind])
    if kind=='swin': config |= dict(depths=DEPTHS[layers], num_heads=config['num_heads'][:len(DEPTHS[layers])])
    elif 't5' in kind: config |= dict(num_layers=layers-layers//2, num_decoder_layers=layers//2)
    else: config['n_layer' if 'gpt' in kind else 'num_hidden_layers'] = layers
    return ModelSpec.from_hf(config, seq=24 if '6' in kind else (2*SEQ, SEQ) if 't5' in kind else SEQ)

def batch(step, bsz, seq=SEQ):
    "Tokens and labels of a step; about a tenth of the labels does not count, in some samples more"
    g = torch.Generator().manual_seed(step)
    x = torch.randint(0, VOCAB, (bsz, seq+1), generator=g)
    ignored = torch.rand(bsz, seq, generator=g)<torch.rand(bsz, 1, generator=g)*.2
    return x[:,:-1].contiguous(), x[:,1:].masked_fill(ignored, -100)

def pictures(step, bsz, size, classes):
    "Pictures and classes of a step; some do not count"
    g = torch.Generator().manual_seed(step)
    labels = torch.randint(0, classes, (bsz,), generator=g)
    return torch.randn(bsz, 3, size, size, generator=g, dtype=torch.float64), labels.masked_fill(torch.rand(bsz, generator=g)<.1, -100)

def texts(step, bsz, spec):
    "Padded texts for encoders: types of tokens for BERT, what the decoder has written for T5"
    g, length = torch.Generator().manual_seed(step), spec.layer_types[0].seq
    tokens, labels = batch(step, bsz, spec.seq)
    more = dict(token_types=torch.randint(0, 2, (bsz, length), generator=g)) if spec.model_type=='bert_hf' else dict(decoder_tokens=tokens)
    there = torch.arange(length)<torch.randint(length//2, length+1, (bsz, 1), generator=g)
    if 'token_types' in more: labels = labels.masked_fill(~there, -100)
    return dict(tokens=torch.randint(0, VOCAB, (bsz, length), generator=g), labels=labels, padding_mask=there.long(), **more)

def inputs(spec, step, bsz):
    "Everything that a step reads, by name"
    if spec.model_type in ('bert_hf', 't5_hf'): return texts(step, bsz, spec)
    if not spec.vocab: return dict(zip(('pixel_values', 'labels'), pictures(step, bsz, spec.config['image_size'], spec.outputs)))
    return dict(zip(('tokens', 'labels'), batch(step, bsz, spec.seq)))

def micro_batches(model, data):
    "What this rank reads of a step"
    rows = zip(model.rows(), model.document_rows())
    return [{k: v[list(reach if k in DOCUMENT_KEYS else r)] for k,v in data.items() if k in DOCUMENT_KEYS or len(r)} for r,reach in rows]

def optimizer_of(model): return adamw(model, lr=1e-2, eps=1e-6, weight_decay=.1) # eps: key biases have no gradient but rounding

def held(model, of):
    "What this rank holds of the tensors `of` parameters: (Hugging Face's name, shape and, of each piece, where it begins there, numbers)"
    return [(g.name, g.shape, lo, t.clone()) for g in model.named_global_parameters() for lo,t in rectangles(*local_box(of(g.param)), g.rule, g.shape)]

def box(lo, t): return tuple(slice(a, a+n) for a,n in zip(lo, t.shape))

def whole(pieces):
    "Tensors by name, put together from all their pieces"
    out = {}
    for name,shape,lo,t in pieces: out.setdefault(name, torch.full(shape, torch.nan, dtype=t.dtype))[box(lo, t)] = t
    return out

def train(model, steps=range(STEPS), optimizer=None, last=STEPS-1, messages=None):
    "Yield loss, norm, gradients (of step 0) and weights (after step `last`), these two as `held`; `messages` counts those of step 1"
    pipeline, optimizer = Pipeline(model), optimizer or optimizer_of(model)
    for step in steps:
        data = {k: v.to(model.place.device) for k,v in inputs(model.spec, step, model.plan.global_bsz).items()}
        watch = lambda: count_collectives() if messages is not None and step==1 else nullcontext()
        with watch() as sent: loss = pipeline.step(micro_batches(model, data))
        grads = held(model, lambda p: p.grad) if step==0 else []
        with watch() as more: norm = clip_grad_norm(model, .5)
        for calls in filter(None, (sent, more)): messages.update(map(tuple, calls.calls))
        optimizer.step()
        weights = held(model, lambda p: p) if step==last else []
        optimizer.zero_grad()
        yield loss.item(), norm.item(), grads, weights

@functools.cache
def reference(kind, bsz, layers=4, steps=STEPS):
    "The same on one process without torch.distributed, one micro-batch"
    spec = spec_of(kind, layers)
    model = StageModel(spec, Plan((LayerStrategy(),)*layers, global_bsz=bsz), RunOptions('fp64'), Place.solo())
    return [(loss, norm, whole(grads), whole(weights)) for loss,norm,grads,weights in train(model, range(steps), last=steps-1)]

def share_references(cases, steps, world, rank):
    "Let each rank compute its part of what one process gives, and all know it"
    wanted = list(dict.fromkeys((kind, plan.global_bsz, plan.n_layers) for _,kind,plan,_ in cases))
    every = [None]*world
    dist.all_gather_object(every, {k:reference(*k, steps) for k in wanted[rank::world]})
    return {k:v for known in every for k,v in known.items()}

def compare(steps, truth):
    "Largest relative errors of some steps, in what this rank holds; NaN if there is one"
    found = dict(loss=[], norm=[], gradient=[], weight=[])
    def note(what, e): found[what].append(float(e))
    for (loss,norm,grads,weights),(l,n,gs,ws) in zip(steps, truth, strict=True):
        note('loss', abs(loss-l)/l)
        note('norm', abs(norm-n)/n)
        for name,_,lo,t in grads: note('gradient', (t-gs[name][box(lo, t)]).norm()/gs[name].norm().clamp(min=1e-4*n)) # biases of keys have no gradient,
        for name,_,lo,t in weights: note('weight', (t-ws[name][box(lo, t)]).norm()/ws[name].norm().clamp(min=1e-2))   # and stay near zero; 1e-2 is one step
    return {what: torch.tensor([0., *es], dtype=torch.float64).max().item() for what,es in found.items()}

def draw(world, rng, kinds=None):
    "A random plan that fits: (kind, plan, options)"
    while True:
        kind = rng.choice(kinds or (['llama6', 'gpt6'] if world==6 else ['llama', 'gpt', 'qwen3']))
        pp = rng.choice([k for k in range(1, 5) if world%k==0])
        n = rng.choice([k for k in (1, 2, 2, 3, 4) if k>=max(pp, 2*('t5' in kind))])
        N, default = world//pp, rng.choice(['ddp', 'zero2', 'zero3'])
        width = lambda: rng.choice([k for k in range(1, N+1) if N%k==0])
        layers = tuple(LayerStrategy(width(), rng.random()<.3, rng.random()<.6, rng.choice([default, 'zero3']), rng.random()<.3) for _ in range(n))
        cuts = sorted(rng.sample(range(1, n), pp-1))
        plan = Plan(layers, VocabStrategy(width(), rng.random()<.3, rng.random()<.3), pp, tuple(b-a for a,b in zip([0]+cuts, cuts+[n])), rng.choice(['gpipe', 'pipedream_flush']),
                    rng.choice([1, 1, 2, 2, 3, 4, 6]), 24, default) # what a step costs here is its micro-batches times its layers
        options = RunOptions('fp64', sequence_parallel=rng.random()<.6 and kind not in ('vit', 'swin'), async_grad_reduce=rng.random()<.5, make_vocab_size_divisible_by=rng.choice((1, 6, 128)))
        if not plan.violations(world, spec_of(kind, n), options): return kind, plan, options

def check_random(world, count, seed, kinds=None):
    "Errors of `count` random plans"
    rng = random.Random(f'{seed} {world}')
    cases = [draw(world, rng, kinds) for _ in range(count)]
    return check_all([(f'{i}: {kind} {json.dumps(plan.to_dict())} {options}', kind, plan, options) for i,(kind,plan,options) in enumerate(cases)])

def check_all(cases, count=False, steps=STEPS):
    "For every (name, kind, plan, options) what this rank found, until one raises: `errors`, `seconds`, `messages` of a step; or the traceback"
    warnings.simplefilter('ignore')
    known, out = share_references(cases, steps, dist.get_world_size(), dist.get_rank()), {}
    for name,kind,plan,options in cases:
        start, messages = time.time(), Counter() if count else None
        try:
            model = StageModel(spec_of(kind, plan.n_layers), plan, options)
            worst = compare(train(model, range(steps), last=steps-1, messages=messages), known[kind, plan.global_bsz, plan.n_layers])
        except Exception:
            out[name] = traceback.format_exc()
            break
        out[name] = dict(errors=worst, seconds=time.time()-start, messages=messages)
    return out

def assert_replicas_equal(model):
    "Parameters that every tensor-parallel rank holds whole are still the same numbers on all of them"
    for g in model.named_global_parameters():
        if g.unit.context.tp>1 and g.rule.shard is None:
            mine = (g.param.to_local() if isinstance(g.param, DTensor) else g.param).detach()
            theirs = [torch.empty_like(mine) for _ in range(g.unit.context.tp)]
            dist.all_gather(theirs, mine, group=g.unit.context.tp_group)
            assert all(torch.equal(t, mine) for t in theirs), g.name

def assert_equal(results, names, tolerance):
    "Every rank finished every named case within `tolerance`"
    for rank,found in enumerate(results):
        for name in names:
            got = found.get(name, 'an earlier case failed')
            assert isinstance(got, dict), f'rank {rank}, {name}:\n{got}'
            assert all(e<tolerance for e in got['errors'].values()), f'rank {rank}, {name}: {got["errors"]}'
