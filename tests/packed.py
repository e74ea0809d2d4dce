"Packed documents under plans, against one process with an explicit block-diagonal mask, in double precision"
import functools, warnings

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from equal import spec_of
from galvatron.data.gpt import DocumentOptions, causal_sample
from galvatron.data.loader import Loader
from galvatron.model_spec import ModelSpec
from galvatron.plan import LayerStrategy, Plan, RunOptions
from galvatron.runtime.groups import Place
from galvatron.runtime.schedule import Pipeline
from galvatron.runtime.stage import Documents, StageModel

WINDOW = ModelSpec.from_hf(dict(model_type='mistral', vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, head_dim=4,
                                initializer_range=.1, sliding_window=3), seq=16)

def spec_for(kind): return WINDOW if kind=='mistral' else spec_of(kind)

class Texts:
    "Samples in which an id that ends documents stands at random places"
    def __init__(self, n, seq, positions, attention): self.n, self.seq, self.options = n, seq, DocumentOptions(0, True, positions, attention)
    def __len__(self): return self.n
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        text = torch.randint(1, 61, (1, self.seq+1), generator=g)
        text[torch.rand(1, self.seq+1, generator=g)<(.25, 0., .5, .1)[i%4]] = 0
        return {k:v[0] for k,v in causal_sample(text.numpy(), self.options).items()}

def block_mask(segments, window):
    "`[B, 1, S, S]`, what may be attended to"
    at = torch.arange(segments.shape[1])
    back = at[:,None]-at
    return ((segments[:,:,None]==segments[:,None,:]) & (back>=0) & (back<(window or len(at))))[:,None]

class Masked(Documents):
    "Gives layers an explicit mask"
    def _make(self, unit, seq):
        res = super()._make(unit, seq)
        if unit.name!='embed': res = {k:v for k,v in res.items() if k!='pieces'} | dict(attention_mask=block_mask(self.segment_ids, self.model.spec.config.get('sliding_window')))
        return res

@functools.cache
def reference(kind, positions, attention, bsz):
    "Loss and gradients by Hugging Face's names, on one process, with every mask in memory"
    spec = spec_for(kind)
    solo = StageModel(spec, Plan((LayerStrategy(),)*4, global_bsz=bsz), RunOptions('fp64'), Place.solo())
    batch, = next(Loader(Texts(bsz, spec.seq, positions, attention), bsz, num_workers=0))
    segments = batch.get('segment_ids', torch.zeros_like(batch['tokens']))
    loss = solo(None, spec.seq, batch['tokens'], batch['labels'], 1/(batch['labels']>=0).sum().item(), documents=Masked(solo, segments, batch.get('position_ids')))
    loss.backward()
    solo.finish_gradients()
    return loss.item(), {g.name: g.to_hf(g.param.grad) for g in solo.named_global_parameters()}

def difference_from_hugging_face(kind, positions, attention, bsz=8):
    "Relative difference of the loss from the unmodified model in single precision"
    spec = spec_for(kind)
    solo = StageModel(spec, Plan((LayerStrategy(),)*4, global_bsz=bsz), RunOptions('fp32'), Place.solo())
    hf = AutoModelForCausalLM.from_config(spec.hf_config(), attn_implementation='eager')
    hf.load_state_dict({g.name: g.to_hf(g.param.detach()) for g in solo.named_global_parameters()}, strict=not spec.tied)
    if spec.tied: hf.tie_weights()
    batch, = next(Loader(Texts(bsz, spec.seq, positions, attention), bsz, num_workers=0))
    segments = batch.get('segment_ids', torch.zeros_like(batch['tokens']))
    allowed = block_mask(segments, spec.config.get('sliding_window'))
    logits = hf(batch['tokens'], attention_mask=torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min), position_ids=batch.get('position_ids'), use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch['labels'].flatten(), ignore_index=-100)
    return abs(Pipeline(solo).step([batch]).item()/loss.item()-1)

def errors(kind, plan, options, positions, attention):
    "Largest relative errors of this rank"
    spec, bsz = spec_for(kind), plan.global_bsz
    model = StageModel(spec, plan, options)
    loader = Loader(Texts(bsz, spec.seq, positions, attention), bsz, plan.chunks, model.rows, num_workers=0, document_rows_fn=model.document_rows)
    step = next(loader)
    loss = Pipeline(model).step(step).item()
    expected, grads = reference(kind, positions, attention, bsz)
    worst = 0.
    for g in model.named_global_parameters():
        mine = g.to_hf(g.param.grad.full_tensor() if isinstance(g.param.grad, DTensor) else g.param.grad)
        worst = max(worst, ((mine-grads[g.name]).norm()/grads[g.name].norm().clamp(min=1e-9)).item())
    with torch.no_grad(): held = Pipeline(model).evaluate(next(Loader(loader.dataset, bsz, plan.chunks, model.rows, num_workers=0, document_rows_fn=model.document_rows))).item()
    return dict(loss=abs(loss-expected)/expected, gradient=worst, evaluation=abs(held-expected)/expected)

def check_all(cases):
    import time, traceback
    warnings.simplefilter('ignore')
    out = {}
    for name,*case in cases:
        start = time.time()
        try: out[name] = errors(*case)
        except Exception:
            out[name] = traceback.format_exc()
            break
        out[name]['seconds'] = time.time()-start
    return out
