"Attention within packed documents: any plan against one process with an explicit mask, and that against Hugging Face's model"
import pytest

from packed import check_all, difference_from_hugging_face, errors
from galvatron.plan import LayerStrategy as S, Plan, RunOptions, VocabStrategy as V
from galvatron.runtime.launch import run_ranks

def opt(sp=False): return RunOptions('fp64', sequence_parallel=sp)
def plan(*layers, vocab=V(), **kw): return Plan(tuple(layers), vocab, **dict(dict(chunks=2, global_bsz=8), **kw))

one, u2, u4, far, z3 = S(), S(2, ulysses=True), S(4, ulysses=True), S(2, consecutive=False), S(dp_type='zero3')
BOTH, MASK, POSITIONS = (True, True), (False, True), (True, False)

FOUR = [
    ('data parallel',             'llama', plan(one, z3, one, z3), opt(), *BOTH),
    ('tensor parallel',           'llama', plan(S(2), S(4), far, one, vocab=V(2)), opt(), *BOTH),
    ('tensor parallel, SP',       'llama', plan(S(2), S(4), far, one, vocab=V(4)), opt(sp=True), *BOTH),
    ('Ulysses',                   'llama', plan(u2, u4, u2, one, vocab=V(2, True)), opt(), *BOTH),
    ('Ulysses beside TP, SP',     'llama', plan(u4, S(2), u2, far, vocab=V(2, True)), opt(sp=True), *MASK),
    ('recompute',                 'llama', plan(S(2, recompute=True), S(4, ulysses=True, recompute=True), S(recompute=True), S(2, consecutive=False, recompute=True)), opt(sp=True), *BOTH),
    ('2 stages, 1F1B',            'llama', plan(S(2), one, u2, z3, pp_deg=2, pipeline_type='pipedream_flush', chunks=4), opt(), *BOTH),
    ('2 stages, GPipe, SP',       'llama', plan(S(2), u2, S(2, recompute=True), S(2), vocab=V(2), pp_deg=2), opt(sp=True), *MASK),
    ('4 stages',                  'llama', plan(one, S(recompute=True), one, z3, pp_deg=4, pipeline_type='pipedream_flush', chunks=4), opt(), *BOTH),
    ('positions only',            'llama', plan(S(2), u4, far, one, vocab=V(2)), opt(sp=True), *POSITIONS),
    ('window',                    'mistral', plan(S(2), u2, one, far), opt(sp=True), *BOTH),
    ('head norms',                'qwen3', plan(S(4), u2, one, far), opt(sp=True), *BOTH),
    ('learned positions',         'gpt', plan(S(2), u4, far, one, vocab=V(2)), opt(sp=True), *BOTH),
    ('learned positions, vsp',    'gpt', plan(u2, S(4), one, far, vocab=V(2, True, True)), opt(), *BOTH),
    ('learned positions, stages', 'gpt', plan(S(2), u2, z3, S(2, recompute=True), vocab=V(2), pp_deg=2, pipeline_type='pipedream_flush'), opt(sp=True), *BOTH),
]

@pytest.mark.parametrize('kind', ['llama', 'mistral', 'qwen3', 'gpt'])
def test_one_process(kind):
    for which in BOTH, MASK, POSITIONS:
        got = errors(kind, plan(one, S(recompute=True), one, one), opt(), *which)
        assert max(got.values())<1e-12, (which, got)
        assert difference_from_hugging_face(kind, *which)<1e-6

@pytest.fixture(scope='module')
def four(): return run_ranks(check_all, 4, FOUR, timeout=400, backend='gloo')

@pytest.mark.parametrize('name', [c[0] for c in FOUR])
def test_four_ranks(four, name):
    for rank in four:
        got = rank.get(name, 'an earlier case failed')
        assert not isinstance(got, str), got
        assert max(got['loss'], got['gradient'], got['evaluation'])<1e-12, got

def test_compiled_layers(monkeypatch):
    "The compiler leaves this attention out, and other lengths in the next step do not make it compile again"
    import functools, torch
    monkeypatch.setattr(torch, 'compile', functools.partial(torch.compile, backend='aot_eager'))
    got = errors('llama', plan(one, S(recompute=True), one, one), RunOptions('fp64', compile=True), *BOTH)
    assert max(got.values())<1e-12, got

def test_kernel_for_variable_lengths(monkeypatch):
    "What the CUDA kernel is asked for, with a plain stand-in of its documented meaning"
    import torch
    from galvatron.runtime import parallelise as p
    def stand_in(q, k, v, cu_q, cu_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False):
        assert cu_q.dtype==torch.int32 and cu_q is cu_k and max_q==max_k==(cu_q[1:]-cu_q[:-1]).max() and cu_q[-1]==len(q)==len(k)
        at, piece = torch.arange(len(q)), torch.searchsorted(cu_q, torch.arange(len(q)), right=True)
        back, (left, right) = at[:,None]-at, window_size
        seen = (piece[:,None]==piece) & ((back<=left) | (left<0)) & ((back>=-right) | (right<0))
        q,k,v = (x.transpose(0, 1)[None] for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=enable_gqa)[0].transpose(0, 1)
    ids = torch.tensor([[0,0,0,1,1,1,1,2], [0]*8, [0,1,2,2,3,3,3,3]])
    q,k,v = torch.randn(3, 4, 8, 16), torch.randn(3, 2, 8, 16), torch.randn(3, 2, 8, 16)
    for kw in (dict(), dict(window=1), dict(window=3, scaling=.3), dict(causal=False)):
        plain = p.within_pieces(q, k, v, p.Pieces(ids), **kw)
        with monkeypatch.context() as m:
            m.setattr(p, 'varlen_attn', stand_in)
            m.setattr(p, '_varlen', lambda *a: True)
            torch.testing.assert_close(p.within_pieces(q, k, v, p.Pieces(ids), **kw), plain)

def test_segments_with_padding_are_refused():
    "Either says what may be attended to"
    import torch
    from equal import inputs, spec_of
    from galvatron.plan import GalvatronError
    from galvatron.runtime.schedule import Pipeline
    from galvatron.runtime.stage import StageModel
    spec = spec_of('bert', 2)
    data = inputs(spec, 0, 4)
    with pytest.raises(GalvatronError, match='segment of its own'): Pipeline(StageModel(spec, Plan((one,)*2, global_bsz=4), opt())).step([dict(data, segment_ids=(torch.arange(16)//9)[None].repeat(4, 1))])

def test_memory_is_linear():
    "No S x S tensor is made, neither forward nor backward"
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from galvatron.runtime import parallelise as p
    largest = []
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, f, types, args=(), kwargs=None):
            out = f(*args, **(kwargs or {}))
            largest.extend(t.numel() for t in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(t, torch.Tensor))
            return out
    q = torch.randn(1, 1, 4096, 8, requires_grad=True)
    ids = torch.arange(4096)[None]//512
    with Watch(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION): p.within_pieces(q, q, q, p.Pieces(ids)).sum().backward()
    assert max(largest)==4096*8
