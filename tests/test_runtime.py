"The runtime on four processes: what is sent, precision, dropout, memory, models side by side; and its layers beside Hugging Face's"
import functools, re

import pytest, torch
from transformers import AutoModelForCausalLM

from equal import CONFIGS, SEQ, batch, inputs, micro_batches, spec_of
from galvatron.model_spec import ModelSpec
from galvatron.plan import GalvatronError, LayerStrategy as S, Plan, RunOptions
from galvatron.runtime.collectives import compiled
from galvatron.runtime.groups import Place
from galvatron.runtime.launch import run_ranks
from galvatron.runtime.optim import _update_all, adamw, clip_grad_norm
from galvatron.runtime.schedule import Pipeline
from galvatron.runtime.stage import Joint, StageModel, joined
from runtime_cases import CASES, ON_TWO, run_all

@pytest.fixture(scope='module')
def results(): return {n: run_ranks(run_all, n, [c.__name__ for c in cases], timeout=240, backend='gloo') for n,cases in ((4, CASES), (2, ON_TWO))}

@pytest.mark.parametrize('n,case', [(n, c.__name__) for n,cases in ((4, CASES), (2, ON_TWO)) for c in cases])
def test_several_ranks(results, n, case):
    for rank,res in enumerate(results[n]):
        if case not in res: pytest.skip('an earlier case failed')
        assert res[case][0], f'rank {rank}:\n{res[case][1]}'

FAMILIES = {k: CONFIGS[k] for k in ('llama', 'qwen3', 'gpt', 'llama6', 'gpt6', 'qwen2', 'mistral')}

@pytest.mark.parametrize('kind', FAMILIES)
def test_huggingface(kind):
    "One process, single precision: logits, loss, gradients and weights of Hugging Face's model, trained by PyTorch's own means"
    torch.manual_seed(0)
    spec = ModelSpec.from_hf(FAMILIES[kind], seq=SEQ)
    model = StageModel(spec, Plan((S(), S(recompute=True))*2, global_bsz=8, chunks=2), RunOptions('fp32'))
    hf = AutoModelForCausalLM.from_config(spec.hf_config(), attn_implementation='eager')
    left = hf.load_state_dict({g.name: g.to_hf(g.param.detach()) for g in model.named_global_parameters()}, strict=not spec.tied)
    assert not left.unexpected_keys and set(left.missing_keys)<=({'lm_head.weight'} if spec.tied else set())
    pipeline, ours = Pipeline(model), adamw(model, lr=1e-2, eps=1e-5, weight_decay=.1)
    decay = [p for p in hf.parameters() if p.dim()>1]
    theirs = torch.optim.AdamW([dict(params=decay), dict(params=[p for p in hf.parameters() if p.dim()<2], weight_decay=0.)], lr=1e-2, eps=1e-5, weight_decay=.1)
    tokens, labels = batch(0, 8)
    close = dict(rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(None, SEQ, tokens)[...,:spec.vocab], hf(tokens).logits, **close)
    for step in range(3):
        tokens, labels = batch(step, 8)
        loss = torch.nn.functional.cross_entropy(hf(tokens).logits.flatten(0, 1), labels.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(hf.parameters(), .5)
        got = pipeline.step([dict(tokens=tokens[list(r)], labels=labels[list(r)]) for r in model.rows()])
        torch.testing.assert_close(got.float(), loss, **close)
        torch.testing.assert_close(clip_grad_norm(model, .5).float(), norm, **close)
        for o in ours,theirs:
            o.step()
            o.zero_grad()
    want = dict(hf.named_parameters())
    for g in model.named_global_parameters(): torch.testing.assert_close(g.to_hf(g.param), want[g.name], rtol=1e-3, atol=1e-4, msg=lambda m: f'{g.name}: {m}')

@pytest.mark.parametrize('kind,precision', [('gpt', 'bf16'), ('t5', 'fp64'), ('bert', 'bf16')])
def test_frozen_tables(kind, precision):
    "Parameters without a gradient, tied and shared ones too, leave all other gradients as they are and keep their numbers"
    spec, plan, grads = spec_of(kind, 2), Plan((S(),)*2, global_bsz=4), []
    for frozen in '', 'embed|word|relative|shared|wte':
        model = StageModel(spec, plan, RunOptions(precision), Place.solo())
        mine = {g.name: g.param.requires_grad_(not (frozen and re.search(frozen, g.name))) for g in model.named_global_parameters()}
        before, optimizer = {n: p.detach().clone() for n,p in mine.items()}, adamw(model, lr=1e-2)
        Pipeline(model).step(micro_batches(model, inputs(spec, 0, 4)))
        grads.append({n: p.grad for n,p in mine.items()})
        optimizer.step()
        assert all(p.requires_grad!=p.detach().equal(before[n]) for n,p in mine.items())
    assert 0<len(left := [n for n,g in grads[1].items() if g is not None])<len(grads[0]) and all(torch.allclose(grads[0][n], grads[1][n], rtol=1e-9, atol=1e-12) for n in left) # another kernel for a T5's scores without gradient

@pytest.mark.parametrize('kind', ['gpt', 'bert', 't5', 'swin'])
def test_gradients_are_added_up_before_the_next_micro_batch(kind):
    "Of tied tables beside neighbours that are not, too: none stays through another forward and backward"
    model = StageModel(spec_of(kind), Plan((S(),)*4, chunks=2, global_bsz=4), RunOptions('bf16'), Place.solo())
    pipeline, left = Pipeline(model), []
    forward = pipeline._forward
    pipeline._forward = lambda *args: left.append([u.name for u in model.units if u.copies.more]) or forward(*args)
    pipeline.step(micro_batches(model, inputs(model.spec, 0, 4)))
    assert left==[[], []]

@pytest.mark.parametrize('kind', ['gpt', 't5'])
def test_the_first_gradients_of_a_unit_become_exact_together(kind, monkeypatch):
    "With an optimizer that takes gradients in any precision: one call for a unit, and the same numbers as one by one; a tied table has two uses"
    from galvatron.runtime import sharding
    calls, make, grads = [], sharding._make_exact, []
    monkeypatch.setattr(sharding, '_make_exact', lambda ps: (calls.append(sum(p.grad.dtype!=p.dtype for p in ps if p.grad is not None)), make(ps)))
    for low in False, True:
        model = StageModel(spec_of(kind), Plan((S(),)*4, chunks=3, global_bsz=6), RunOptions('bf16'), Place.solo())
        if low: model.keep_gradients_low()
        calls.clear()
        Pipeline(model).step(micro_batches(model, inputs(model.spec, 0, 6)))
        grads.append([p.grad for p in dict.fromkeys(model.parameters())])
        made = [n for n in calls if n]
        assert sum(made)==low*len(grads[-1]) and len(made)<=low*len(model.units) # of the unit with a T5's table alone there is none
    assert all(g.dtype==torch.float32 for g in grads[1]) and all(map(torch.equal, *grads))

def test_a_step_that_failed_leaves_nothing():
    "An error in the middle of a layer's backward, then gradients set to zero in place: the next step's are its own"
    spec, grads = spec_of('llama', 2), []
    for fails in False, True:
        model = StageModel(spec, Plan((S(),)*2, chunks=4, global_bsz=8), RunOptions('bf16'), Place.solo())
        pipeline, calls = Pipeline(model), []
        def fail(*_):
            calls.append(1)
            if len(calls)==3: raise RuntimeError('lost')
        if fails:
            hook = model.units[1].module.self_attn.register_full_backward_pre_hook(fail)
            with pytest.raises(RuntimeError, match='lost'): pipeline.step(micro_batches(model, inputs(spec, 1, 8)))
            hook.remove()
            assert model.units[1].copies.more
            model.zero_grad(set_to_none=False)
        pipeline.step(micro_batches(model, inputs(spec, 0, 8)))
        grads.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *grads))

def test_units_of_many_sizes_are_all_compiled():
    "PyTorch's default is eight forms of a function; a Swin has units with 1, 2, 3, 6 and 7 large matrices, each in two forms at least"
    graphs, h = [], torch.ones(6)
    update = compiled(_update_all, backend=lambda graph, example: graphs.append(graph) or graph)
    for n in range(1, 11): update(h, h[0], *(None if i%5==4 else torch.ones(2, 4) for i in range(5*n)))
    assert len(graphs)==10

def test_hooks_of_layers_in_one_graph(monkeypatch):
    "They are called, with the layers apart; where layers exchange, ranks with and without hooks would have other graphs: an error"
    monkeypatch.setattr(torch, 'compile', functools.partial(torch.compile, backend='aot_eager'))
    spec, plan, seen, losses = spec_of('gpt', 2), Plan((S(),)*2, global_bsz=4), [], []
    for hooks in False, True:
        model = StageModel(spec, plan, RunOptions('fp64', compile=True), Place.solo())
        layer = model.units[2].module
        if hooks: layer.register_forward_hook(lambda *_: seen.append('forward')), layer.register_full_backward_hook(lambda *_: seen.append('backward'))
        losses.append(Pipeline(model).step(micro_batches(model, inputs(spec, 0, 4))).item())
    assert seen==['forward', 'backward'] and abs(losses[0]-losses[1])<1e-12*losses[0]
    model.runs[1].chain.least = 2
    with pytest.raises(GalvatronError, match='hooks on layers.1'): Pipeline(model).step(micro_batches(model, inputs(spec, 0, 4)))

def test_layers_halved_from_different_sizes_share_no_graph():
    "Swin's stages: each runs on two halves from the micro-batch on that is priced so"
    model = StageModel(spec_of('swin'), Plan((S(),)*4, global_bsz=4), RunOptions('fp64', compile=True), Place.solo())
    for u,least in zip(model.units[1:], (2, 2, 4, 4)): u.module.least = least
    assert [[u.module.least for u in r.units] for r in joined(model.units) if isinstance(r, Joint)]==[[2, 2], [4, 4]]

@pytest.mark.parametrize('precision', ['fp16', 'bf16'])
def test_rows_of_a_padded_vocabulary_have_unit_length_or_none(precision):
    "Baichuan's head divides rows by their length: those that pad the vocabulary are 0, and so was what keeps 0/0 away, in fp16"
    spec = spec_of('baichuan', 1)
    model = StageModel(spec, Plan((S(),), global_bsz=4), RunOptions(precision, make_vocab_size_divisible_by=128), Place.solo())
    Pipeline(model).step(micro_batches(model, inputs(spec, 0, 4)))
    assert all(g.param.grad.isfinite().all() for g in model.named_global_parameters())
