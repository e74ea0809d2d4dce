"Train tiny models under plans and compare everything with one process, in double precision"
import functools, json, random, time, traceback, warnings
from collections import Counter
from contextlib import nullcontext

import torch, torch.distributed as dist
from torch.distributed.tensor import DTensor

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
CONFIGS |= dict( # what six ranks divide
    llama6=dict(CONFIGS['llama'], hidden_size=48, num_attention_heads=12, num_key_value_heads=6),
    gpt6=dict(CONFIGS['gpt'], n_embd=48, n_head=12, n_positions=24))

@functools.cache
def spec_of(kind, layers=4):
    config = dict(CONFIGS[kind])
    config['n_layer' if 'gpt' in kind else 'num_hidden_layers'] = layers
    return ModelSpec.from_hf(config, seq=24 if '6' in kind else SEQ)

def batch(step, bsz, seq=SEQ):
    "Tokens and labels of a step; about a tenth of the labels does not count, in some samples more"
    g = torch.Generator().manual_seed(step)
    x = torch.randint(0, VOCAB, (bsz, seq+1), generator=g)
    ignored = torch.rand(bsz, seq, generator=g)<torch.rand(bsz, 1, generator=g)*.2
    return x[:,:-1].contiguous(), x[:,1:].masked_fill(ignored, -100)

def train(model, steps=STEPS, messages=None):
    "Yield loss, norm, gradients and weights of each step, the last two whole and by Hugging Face's names; `messages` counts those of the second step"
    pipeline, optimizer = Pipeline(model), adamw(model, lr=1e-2, eps=1e-6, weight_decay=.1) # eps: key biases have no gradient but rounding
    whole = lambda g,t: g.to_hf(t.full_tensor() if isinstance(t, DTensor) else t).detach().clone()
    for step in range(steps):
        tokens, labels = batch(step, model.plan.global_bsz, model.spec.seq)
        tokens, labels = tokens.to(model.place.device), labels.to(model.place.device)
        watch = lambda: count_collectives() if messages is not None and step==1 else nullcontext()
        with watch() as sent: loss = pipeline.step([dict(tokens=tokens[list(r)], labels=labels[list(r)]) for r in model.rows()])
        grads = [(g.name, whole(g, g.param.grad)) for g in model.named_global_parameters()] if step==0 else []
        with watch() as more: norm = clip_grad_norm(model, .5)
        for calls in filter(None, (sent, more)): messages.update(map(tuple, calls.calls))
        optimizer.step()
        weights = [(g.name, whole(g, g.param)) for g in model.named_global_parameters()] if step==steps-1 else []
        optimizer.zero_grad()
        yield loss.item(), norm.item(), grads, weights

@functools.cache
def reference(kind, bsz, layers=4, steps=STEPS):
    "The same on one process without torch.distributed, one micro-batch"
    spec = spec_of(kind, layers)
    model = StageModel(spec, Plan((LayerStrategy(),)*layers, global_bsz=bsz), RunOptions('fp64'), Place.solo())
    return [(loss, norm, dict(grads), dict(weights)) for loss,norm,grads,weights in train(model, steps)]

def share_references(cases, steps, world, rank):
    "Let each rank compute its part of what one process gives, and all know it"
    wanted = list(dict.fromkeys((kind, plan.global_bsz, plan.n_layers) for _,kind,plan,_ in cases))
    every = [None]*world
    dist.all_gather_object(every, {k:reference(*k, steps) for k in wanted[rank::world]})
    return {k:v for known in every for k,v in known.items()}

def errors(kind, plan, options, ref, messages):
    "Largest relative errors of this rank: loss, norm, first gradients, last weights"
    model = StageModel(spec_of(kind, plan.n_layers), plan, options)
    worst = dict(loss=0., norm=0., gradient=0., weight=0.)
    def note(what, e): worst[what] = max(worst[what], float(e))
    for (loss,norm,grads,weights),(l,n,gs,ws) in zip(train(model, len(ref), messages), ref):
        note('loss', abs(loss-l)/l)
        note('norm', abs(norm-n)/n)
        for name,t in grads: note('gradient', (t-gs[name]).norm()/gs[name].norm())
        for name,t in weights: note('weight', (t-ws[name]).norm()/ws[name].norm())
    return worst

def draw(world, rng):
    "A random plan that fits: (kind, plan, options)"
    while True:
        kind = rng.choice(['llama6', 'gpt6'] if world==6 else ['llama', 'gpt', 'qwen3'])
        n, pp = rng.randint(1, 4), rng.choice([k for k in range(1, world+1) if world%k==0])
        if n<pp: continue
        N, default = world//pp, rng.choice(['ddp', 'zero2', 'zero3'])
        width = lambda: rng.choice([k for k in range(1, N+1) if N%k==0])
        layers = tuple(LayerStrategy(width(), rng.random()<.3, rng.random()<.6, rng.choice([default, 'zero3']), rng.random()<.3) for _ in range(n))
        cuts = sorted(rng.sample(range(1, n), pp-1))
        plan = Plan(layers, VocabStrategy(width(), rng.random()<.3, rng.random()<.3), pp, tuple(b-a for a,b in zip([0]+cuts, cuts+[n])), rng.choice(['gpipe', 'pipedream_flush']),
                    rng.choice([1, 2, 3, 4, 6]), 24, default)
        options = RunOptions('fp64', sequence_parallel=rng.random()<.6, async_grad_reduce=rng.random()<.5)
        if not plan.violations(world, spec_of(kind, n), options): return kind, plan, options

def check_random(world, count, seed):
    "Errors of `count` random plans"
    rng = random.Random(f'{seed} {world}')
    cases = [draw(world, rng) for _ in range(count)]
    return check_all([(f'{i}: {kind} {json.dumps(plan.to_dict())} {options}', kind, plan, options) for i,(kind,plan,options) in enumerate(cases)])

def check_all(cases, count=False, steps=STEPS):
    "For every (name, kind, plan, options) what this rank found, until one raises: `errors`, `seconds`, `messages` of a step; or the traceback"
    warnings.simplefilter('ignore')
    known, out = share_references(cases, steps, dist.get_world_size(), dist.get_rank()), {}
    for name,kind,plan,options in cases:
        start, messages = time.time(), Counter() if count else None
        try: worst = errors(kind, plan, options, known[kind, plan.global_bsz, plan.n_layers], messages)
        except Exception:
            out[name] = traceback.format_exc()
            break
        out[name] = dict(errors=worst, seconds=time.time()-start, messages=messages)
    return out

def assert_equal(results, names, tolerance):
    "Every rank finished every named case within `tolerance`"
    for rank,found in enumerate(results):
        for name in names:
            got = found.get(name, 'an earlier case failed')
            assert isinstance(got, dict), f'rank {rank}, {name}:\n{got}'
            assert all(e<tolerance for e in got['errors'].values()), f'rank {rank}, {name}: {got["errors"]}'
