"Train tiny models under plans and compare everything with one process, in double precision"
import functools, warnings

import torch, torch.distributed as dist
from torch.distributed.tensor import DTensor

from galvatron.model_spec import ModelSpec
from galvatron.plan import LayerStrategy, Plan, RunOptions
from galvatron.runtime.groups import Place
from galvatron.runtime.optim import adamw, clip_grad_norm
from galvatron.runtime.schedule import Pipeline
from galvatron.runtime.stage import StageModel

SEQ, STEPS = 16, 3
CONFIGS = dict( # 8 query heads, 2 key heads; a vocabulary that nothing divides
    llama=dict(model_type='llama', vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, initializer_range=.1),
    qwen3=dict(model_type='qwen3', vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, head_dim=8, initializer_range=.1),
    gpt=dict(model_type='gpt2', vocab_size=61, n_embd=32, n_layer=4, n_head=8, n_positions=SEQ, attn_pdrop=0., resid_pdrop=0., embd_pdrop=0., initializer_range=.1))

@functools.cache
def spec_of(kind, layers=4):
    config = dict(CONFIGS[kind])
    config['n_layer' if kind=='gpt' else 'num_hidden_layers'] = layers
    return ModelSpec.from_hf(config, seq=SEQ)

def batch(step, bsz):
    "Tokens and labels of a step; about a tenth of the labels does not count, in some samples more"
    g = torch.Generator().manual_seed(step)
    x = torch.randint(0, 61, (bsz, SEQ+1), generator=g)
    ignored = torch.rand(bsz, SEQ, generator=g)<torch.rand(bsz, 1, generator=g)*.2
    return x[:,:-1].contiguous(), x[:,1:].masked_fill(ignored, -100)

def train(model, steps=STEPS):
    "Yield loss, norm, gradients and weights of each step, the last two whole and by Hugging Face's names"
    pipeline, optimizer = Pipeline(model), adamw(model, lr=1e-2, eps=1e-6, weight_decay=.1) # eps: key biases have no gradient but rounding
    whole = lambda g,t: g.to_hf(t.full_tensor() if isinstance(t, DTensor) else t).detach().clone()
    for step in range(steps):
        tokens, labels = batch(step, model.plan.global_bsz)
        loss = pipeline.step([dict(tokens=tokens[list(r)], labels=labels[list(r)]) for r in model.rows()])
        grads = [(g.name, whole(g, g.param.grad)) for g in model.named_global_parameters()] if step==0 else []
        norm = clip_grad_norm(model, .5)
        optimizer.step()
        weights = [(g.name, whole(g, g.param)) for g in model.named_global_parameters()] if step==steps-1 else []
        optimizer.zero_grad()
        yield loss.item(), norm.item(), grads, weights

@functools.cache
def reference(kind, bsz, layers=4):
    "The same on one process without torch.distributed, one micro-batch"
    spec = spec_of(kind, layers)
    model = StageModel(spec, Plan((LayerStrategy(),)*layers, global_bsz=bsz), RunOptions('fp64'), Place.solo())
    return [(loss, norm, dict(grads), dict(weights)) for loss,norm,grads,weights in train(model)]

def errors(kind, plan, options):
    "Largest relative errors of this rank: loss, norm, first gradients, last weights"
    ref, worst = reference(kind, plan.global_bsz, plan.n_layers), dict(loss=0., norm=0., gradient=0., weight=0.)
    def note(what, e): worst[what] = max(worst[what], float(e))
    for (loss,norm,grads,weights),(l,n,gs,ws) in zip(train(StageModel(spec_of(kind, plan.n_layers), plan, options)), ref):
        note('loss', abs(loss-l)/l)
        note('norm', abs(norm-n)/n)
        for name,t in grads: note('gradient', (t-gs[name]).norm()/gs[name].norm())
        for name,t in weights: note('weight', (t-ws[name]).norm()/ws[name].norm())
    return worst

def check_all(cases):
    "Errors of every (name, kind, plan, options) on this rank, until one raises"
    import time, traceback
    warnings.simplefilter('ignore')
    out = {}
    for name,kind,plan,options in cases:
        start = time.time()
        try: out[name] = errors(kind, plan, options)
        except Exception:
            out[name] = traceback.format_exc()
            break
        out[name]['seconds'] = time.time()-start
    return out
