"Every family of the zoo under random plans, beside Hugging Face's forward, through checkpoints, and through a search"
import pytest, transformers

from equal import assert_equal, inputs, spec_of
from galvatron.plan import LayerStrategy, Plan, RunOptions
from galvatron.runtime.groups import Place
from galvatron.runtime.launch import run_ranks
from galvatron.runtime.stage import StageModel
from zoo import check_zoo

KINDS, PLANS, TOLERANCE = ('vit', 'swin', 'baichuan'), 12, 1e-11

@pytest.fixture(scope='module')
def trained(tmp_path_factory): return run_ranks(check_zoo, 4, KINDS, PLANS, str(tmp_path_factory.mktemp('zoo')), timeout=400, backend='gloo')

@pytest.mark.timeout(450)
@pytest.mark.parametrize('kind', KINDS)
def test_any_plan(trained, kind):
    "Loss, gradients, norm and weights of three clipped steps are those of one process; a checkpoint goes on under another plan"
    for res in trained:
        if kind not in res: pytest.skip('an earlier family failed')
    assert_equal([res[kind] for res in trained], [*trained[0][kind], 'resumed'], TOLERANCE)
    assert len(trained[0][kind])==PLANS+1

@pytest.mark.parametrize('kind', sorted(set(KINDS)-{'baichuan'})) # which Hugging Face does not have; its page writes the forward down
def test_forward_is_hugging_face_s(kind):
    spec = spec_of(kind)
    model = StageModel(spec, Plan((LayerStrategy(),)*spec.n_layers), RunOptions('fp64'), Place.solo()).eval()
    hf = getattr(transformers, model.recipe.model).from_config(spec.hf_config(), attn_implementation='sdpa').double().eval() # its eager softmax is in single precision
    hf.load_state_dict({g.name: g.to_hf(g.param.detach()) for g in model.named_global_parameters()})
    data = inputs(spec, 0, 4)
    data.pop('labels')
    ours, theirs = model(None, spec.seq, data)[...,:spec.outputs], hf(**data).logits
    assert (ours.view_as(theirs)-theirs).abs().max()<1e-10*theirs.abs().max()
