"The peak of a step on one rank, tensor by tensor, against the prediction: what a layer, an embedding and a head were measured to hold, put together"
import gc, warnings, weakref
from contextlib import contextmanager
from dataclasses import replace

import pytest, torch
from torch import distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from galvatron.cost.pipeline import RESERVE, predict
from galvatron.model_spec import ModelSpec
from galvatron.plan import LayerStrategy, Plan, RunOptions, VocabStrategy
from galvatron.profile.files import HardwareProfile
from galvatron.profile.model import ProfileModelArgs, profile_model
from galvatron.runtime import sharding, stage
from galvatron.runtime.arguments import TrainArgs
from galvatron.runtime.collectives import local
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
        alive = self.living()
        self.seen = {k: self.seen[k] for k in alive}
        self.peak = max(self.peak, sum(s.nbytes() for s in alive.values()))
        return out
    def living(self): return {k: s for k,r in self.seen.items() if (s := r()) is not None}

def counted(spec, plan, options):
    "MiB at the peak of the third step's passes, and in the optimizer's turn when it has done its work (on a CPU it has temporary copies before, on a GPU none)"
    t = Trainer(spec, plan, TrainArgs(train_iters=9), options)
    def batches():
        x = torch.randint(0, spec.vocab, (plan.global_bsz, spec.seq+1))
        return [dict(tokens=x[list(r),:-1], labels=x[list(r),1:]) for r in t.model.rows()]
    for _ in range(2): t.train_step(batches())
    gc.collect(); gc.disable()
    try:
        with Count() as c:
            c.look([*map(local, t.model.parameters()), *t.model.buffers(), *(local(v) for s in t.optimizer.state.values() for v in s.values()), *(w for u in t.model.units if u.copies for w in u.copies.copies.values())])
            t.pipeline.step(batches())
        t.optimizer.step()
        return c.peak/2**20, sum(s.nbytes() for s in c.living().values())/2**20
    finally: gc.enable()

def said(p):
    "The same of a prediction"
    optimizer, *passes = (sum(m.values()) for m in p.stages[0].moments())
    assert max(optimizer, *passes)==pytest.approx((p.peak_mib-p.stages[0].beside_mib)/(1+RESERVE))
    return max(passes), optimizer

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
        assert said(p)==pytest.approx(counted(spec, plan, options), rel=most), (batch, chunks, r)
        assert p.peak_mib<=p.bound_mib*(1+1e-9)

@contextmanager
def two_ranks(monkeypatch):
    "This process takes itself for one of two with GPUs: tensors travel from where they are, and nobody answers"
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group('fake', store=FakeStore(), rank=0, world_size=2)
    monkeypatch.setattr(sharding, '_by_way', lambda ts, n: (range(len(ts)), []))
    for module in (sharding, stage): monkeypatch.setattr(module, 'add_over', lambda *_: None)
    try: yield
    finally: dist.destroy_process_group()

SHARED = [('ddp', 1, {}), ('ddp', 4, {}), ('ddp', 4, dict(async_grad_reduce=False)), ('zero2', 1, {}), ('zero2', 4, {}), ('zero3', 4, {})]

@pytest.mark.timeout(120)
@pytest.mark.parametrize('precision, length, most', [('fp32', 8, .005), ('bf16', 8, .005), ('fp32', 128, .045), ('bf16', 128, .035)])
def test_peak_of_a_step_that_ranks_share(tmp_path, monkeypatch, precision, length, most):
    "Copies, fresh gradients, what a reduction reads and what it leaves: with a large vocabulary and few tokens they are everything, with more tokens they lie beside working memory"
    warnings.simplefilter('ignore')
    spec = ModelSpec.from_size('llama_hf', None, 4, length, vocab_size=8192 if length==8 else 512, **SHAPE)
    a = ProfileModelArgs(profile_type='all', budget_ms=1, profile_mode='static', batches='2,4', profile_seq_length_list=str(length), max_tp_deg=1, mixed_precision=precision, output_dir=str(tmp_path), device='cpu')
    profile, hardware = profile_model(a, spec), replace(HardwareProfile.analytic('h200', 1, 2), meta=dict(context_mib=0.))
    def check(dp, chunks, how):
        plan = Plan((LayerStrategy(dp_type=dp),)*4, VocabStrategy(embed_sdp=dp=='zero3'), chunks=chunks, global_bsz=8 if chunks==1 else 16, default_dp_type='ddp' if dp=='ddp' else 'zero2')
        p = predict(plan, spec, hardware, profile, options := RunOptions(precision, **how))
        assert said(p)==pytest.approx(counted(spec, plan, options), rel=most), (dp, chunks, how)
        assert p.peak_mib<=p.bound_mib*(1+1e-9)
    with two_ranks(monkeypatch):
        for case in SHARED: check(*case)
