"Run one step of tiny models under plans and record every collective"
import warnings

from equal import batch, spec_of
from galvatron.runtime.collectives import count_collectives
from galvatron.runtime.optim import clip_grad_norm
from galvatron.runtime.schedule import Pipeline
from galvatron.runtime.stage import StageModel

def count_all(cases):
    "`{name: {(kind, ranks, bytes): times}}` of this rank, in one step"
    warnings.simplefilter('ignore')
    out = {}
    for name,kind,plan,options in cases:
        model = StageModel(spec_of(kind, plan.n_layers), plan, options)
        pipeline = Pipeline(model)
        tokens, labels = batch(0, plan.global_bsz)
        micro = [dict(tokens=tokens[list(r)], labels=labels[list(r)]) for r in model.rows()]
        with count_collectives() as c:
            pipeline.step(micro)
            clip_grad_norm(model, 1.)
        out[name] = {tuple(k): n for k,n in c.table().items()}
    return out
