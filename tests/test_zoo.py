"Every family of the zoo under random plans, beside Hugging Face's forward, through checkpoints, and through a search"
import random

import pytest, torch, transformers

from equal import DEPTHS, check_random, inputs, spec_of
from galvatron.plan import LayerStrategy, Plan, RunOptions
from galvatron.runtime.groups import Place
from galvatron.runtime.launch import run_ranks
from galvatron.runtime.stage import StageModel

KINDS, PLANS, TOLERANCE = ('vit', 'swin'), 12, 1e-11

@pytest.mark.timeout(300)
@pytest.mark.parametrize('kind', KINDS)
def test_random_plans(kind):
    "Loss, gradients, norm and weights of three clipped steps are those of one process"
    for rank,res in enumerate(run_ranks(check_random, 4, 4, PLANS, 'zoo', [kind], timeout=240, backend='gloo')):
        for name,errors in res.items():
            assert isinstance(errors, dict), f'rank {rank}, plan {name}:\n{errors}'
            assert all(e<TOLERANCE for k,e in errors.items() if k!='seconds'), f'rank {rank}, plan {name}: {errors}'
        assert len(res)==PLANS

@pytest.mark.parametrize('kind', KINDS)
def test_forward_is_hugging_face_s(kind):
    spec = spec_of(kind)
    model = StageModel(spec, Plan((LayerStrategy(),)*spec.n_layers), RunOptions('fp64'), Place.solo()).eval()
    hf = getattr(transformers, model.recipe.model).from_config(spec.hf_config(), attn_implementation='sdpa').double().eval() # its eager softmax is in single precision
    hf.load_state_dict({g.name: g.to_hf(g.param.detach()) for g in model.named_global_parameters()})
    data = inputs(spec, 0, 4)
    labels = data.pop('labels')
    ours, theirs = model(None, spec.seq, data)[...,:spec.outputs], hf(**data).logits
    assert (ours.view_as(theirs)-theirs).abs().max()<1e-10*theirs.abs().max()
