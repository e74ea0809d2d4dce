"The peak of a step on one rank, tensor by tensor, against the prediction: what a layer, an embedding and a head were measured to hold, put together"
import gc, warnings, weakref

import pytest, torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from galvatron.cost.pipeline import RESERVE, predict
from galvatron.model_spec import ModelSpec
from galvatron.plan import LayerStrategy, Plan, RunOptions
from galvatron.profile.files import HardwareProfile
from galvatron.profile.model import ProfileModelArgs, profile_model
from galvatron.runtime.arguments import TrainArgs
from galvatron.runtime.train import Trainer

class Count(TorchDispatchMode):
    "Sum of all living storages that any operation has seen, looked at after each; a storage that was emptied counts nothing"
    def __init__(self):
        super().__init__()
        self.seen, self.peak = {}, 0
    def look(self, tensors):
        for t in tensors:
            if type(t) in (torch.Tensor, torch.nn.Parameter):
                s = t.untyped_storage()
                self.seen.setdefault(s._cdata, weakref.ref(s))
    def __torch_dispatch__(self, f, types, args=(), kwargs=None):
        self.look(tree_leaves((args, kwargs)))
        out = f(*args, **(kwargs or {}))
        self.look(tree_leaves(out))
        alive = {k: s for k,r in self.seen.items() if (s := r()) is not None}
        self.seen = {k: self.seen[k] for k in alive}
        self.peak = max(self.peak, sum(s.nbytes() for s in alive.values()))
        return out

def counted(spec, plan, options):
    "MiB at the peak of the third step, before the optimizer (which has temporary copies on a CPU and none on a GPU)"
    t = Trainer(spec, plan, TrainArgs(train_iters=9), options)
    def batches():
        x = torch.randint(0, spec.vocab, (plan.global_bsz, spec.seq+1))
        return [dict(tokens=x[list(r),:-1], labels=x[list(r),1:]) for r in t.model.rows()]
    for _ in range(2): t.train_step(batches())
    gc.collect(); gc.disable()
    try:
        with Count() as c:
            c.look([*t.model.parameters(), *t.model.buffers(), *(v for s in t.optimizer.state.values() for v in s.values()), *(w for u in t.model.units if u.copies for w in u.copies.copies.values())])
            t.pipeline.step(batches())
    finally: gc.enable()
    return c.peak/2**20

SHAPE = dict(hidden_size=128, num_attention_heads=4, num_key_value_heads=2, intermediate_size=384)
CASES = [(4, 1, 0), (4, 1, 2), (4, 1, 4), (8, 4, 0), (8, 4, 3)] # batch, micro-batches, recomputed layers

@pytest.mark.timeout(120)
@pytest.mark.parametrize('precision, tied, vocab, most, length', [('fp32', False, 512, .01, 128), ('bf16', True, 8192, .02, 128), ('fp32', True, 8192, .01, 8), ('bf16', True, 8192, .02, 8)])
def test_peak_of_a_step(tmp_path, precision, tied, vocab, most, length):
    "Small and large vocabularies, own and tied tables, working copies, accumulation, some, all and no layers recomputed; so few tokens that the table is everything"
    warnings.simplefilter('ignore')
    spec, options = ModelSpec.from_size('llama_hf', None, 4, length, vocab_size=vocab, tie_word_embeddings=tied, **SHAPE), RunOptions(precision)
    a = ProfileModelArgs(profile_type='all', budget_ms=1, profile_mode='static', batches='2,4', profile_seq_length_list=str(length), max_tp_deg=1, mixed_precision=precision, output_dir=str(tmp_path), device='cpu')
    profile, hardware = profile_model(a, spec), HardwareProfile(1, 1, device='cpu')
    for batch,chunks,r in CASES if length>8 else CASES[::3]:
        plan = Plan(tuple(LayerStrategy(recompute=i<r) for i in range(4)), chunks=chunks, global_bsz=batch)
        p = predict(plan, spec, hardware, profile, options)
        mine = (p.peak_mib-p.stages[0].context)/(1+RESERVE)
        assert mine==pytest.approx(counted(spec, plan, options), rel=most), (batch, chunks, r)
        assert p.peak_mib<=p.bound_mib*(1+1e-9)
