"Every family of the zoo under random plans, beside Hugging Face's forward, through checkpoints, and through a search"
import pytest, torch, torch.nn.functional as F, transformers
from safetensors.torch import load_file, save_file
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.t5 import modeling_t5

from equal import assert_equal, check_random, inputs, spec_of
from galvatron.checkpoint.huggingface import g2h, h2g, open_weights
from galvatron.model_spec import ModelSpec, model_sizes
from galvatron.plan import ULYSSES_TYPES, LayerStrategy, Plan, RunOptions
from galvatron.profile.files import HardwareProfile, ModelProfile
from galvatron.runtime.groups import Place
from galvatron.runtime.launch import run_ranks
from galvatron.runtime.parallelise import recipe_of
from galvatron.runtime.stage import Documents, StageModel
from galvatron.search.engine import search
from galvatron.search.space import SearchArgs
from zoo import check_zoo

KINDS, PLANS, TOLERANCE = ('bert', 't5', 't5_gated', 'vit', 'swin', 'baichuan'), 12, 1e-11
NAMES = dict(tokens='input_ids', token_types='token_type_ids', decoder_tokens='decoder_input_ids', padding_mask='attention_mask') # ours and Hugging Face's

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

@pytest.mark.parametrize('kind', ['llama', 'qwen3', 'gpt', *sorted(set(KINDS)-{'baichuan'})]) # which Hugging Face does not have; its page writes the forward down
def test_forward_is_hugging_face_s(kind, monkeypatch):
    for norm in (modeling_t5.T5LayerNorm, modeling_llama.LlamaRMSNorm, modeling_qwen3.Qwen3RMSNorm): # theirs is in single precision
        monkeypatch.setattr(norm, 'forward', lambda m, x: F.rms_norm(x, m.weight.shape, m.weight, m.variance_epsilon))
    spec = spec_of(kind)
    model = StageModel(spec, Plan((LayerStrategy(),)*spec.n_layers), RunOptions('fp64'), Place.solo()).eval()
    hf = getattr(transformers, model.recipe.model).from_config(spec.hf_config(), attn_implementation='sdpa').double().eval() # its eager softmax is in single precision
    left = hf.load_state_dict({g.name: g.to_hf(g.param.detach()) for g in model.named_global_parameters()}, strict=not spec.tied)
    hf.tie_weights()
    data = inputs(spec, 0, 4)
    data.pop('labels')
    ours = model(None, spec.seq, {k:v for k,v in data.items() if k!='padding_mask'}, documents=Documents(model, padding_mask=data.get('padding_mask')))[...,:spec.outputs]
    theirs = hf(**{NAMES.get(k, k): v for k,v in data.items()}).logits
    assert not left.unexpected_keys
    assert (ours.view_as(theirs)-theirs).abs().max()<1e-10*theirs.abs().max()

@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize('kind', KINDS)
def test_many_plans(kind):
    results = run_ranks(check_random, 4, 4, 100, f'zoo {kind} slow', [kind], timeout=3000, backend='gloo')
    assert_equal(results, [*results[0]], TOLERANCE)

@pytest.mark.parametrize('kind', ['bert', 't5', 't5_gated', 'vit', 'swin'])
def test_there_and_back(kind, tmp_path):
    "From a Hugging Face folder to a checkpoint and back: the same names, the same bytes"
    torch.manual_seed(0)
    spec = spec_of(kind)
    hf = getattr(transformers, recipe_of(spec.config['model_type']).model).from_config(spec.hf_config())
    hf.save_pretrained(tmp_path/'hf')
    h2g(tmp_path/'hf', tmp_path/'g')
    g2h(tmp_path/'g', tmp_path/'back')
    a, b = (open_weights(tmp_path/n) for n in ('hf', 'back'))
    assert a.keys()==b.keys() and all(torch.equal(a[n].read((slice(None),)), b[n].read((slice(None),))) for n in a)
    again, info = type(hf).from_pretrained(tmp_path/'back', output_loading_info=True)
    assert not any(info.values()) and all(torch.equal(p, q) for p,q in zip(hf.parameters(), again.parameters()))

def test_old_folders(tmp_path):
    "BERT with the heads and names of the first releases, T5 with its table three times"
    every = (slice(None),)
    bert = transformers.BertForPreTraining(spec_of('bert').hf_config())
    bert.save_pretrained(tmp_path/'bert')
    t5 = transformers.T5ForConditionalGeneration(spec_of('t5').hf_config())
    t5.save_pretrained(tmp_path/'t5')
    old = {n.replace('LayerNorm.weight', 'LayerNorm.gamma').replace('LayerNorm.bias', 'LayerNorm.beta'): t for n,t in load_file(tmp_path/'bert/model.safetensors').items()}
    save_file(old, tmp_path/'bert/model.safetensors')
    table = t5.shared.weight.detach()
    more = {n: table.clone() for n in ('encoder.embed_tokens.weight', 'decoder.embed_tokens.weight', 'lm_head.weight')}
    save_file(load_file(tmp_path/'t5/model.safetensors') | more | {'decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight': torch.ones(8, 8)}, tmp_path/'t5/model.safetensors')
    for name,model in dict(bert=bert, t5=t5).items():
        h2g(tmp_path/name, tmp_path/f'{name}-g')
        g2h(tmp_path/f'{name}-g', tmp_path/f'{name}-new')
        new, wanted = open_weights(tmp_path/f'{name}-new'), dict(model.named_parameters())
        assert new.keys()<=wanted.keys() and all(torch.equal(t.read(every), wanted[n]) for n,t in new.items())
        assert {n for n in wanted if n not in new and not n.startswith(('bert.pooler', 'cls.seq'))}==set()

SIZES = [(k, n) for k in ('llama_hf', 'baichuan_hf', 'gpt_hf', 'bert_hf', 't5_hf', 'vit_hf', 'swin_hf') for n in model_sizes(k)]
TOO_LARGE = {8: {'llama2-70b', 'llama3-70b', 'llama3-405b', 'qwen2.5-72b'}, 64: {'llama3-405b'}} # for 80 GB devices

@pytest.mark.parametrize('nodes', [1, 8])
def test_every_size_is_searched(nodes):
    "On 8 and on 64 devices by formula; what is found passes the check, and what must fit is found"
    hardware, none = HardwareProfile.analytic('h100', nodes, 8), set()
    for kind,name in SIZES:
        spec = ModelSpec.from_size(kind, name, seq=4096 if 'qwen' in name else None)
        sp = spec.layer_types[0].name in ULYSSES_TYPES
        args = SearchArgs(num_nodes=nodes, num_gpus_per_node=8, memory_constraint=72, settle_bsz=64 if spec.vocab else 512, sequence_parallel=sp, sp_space='tp+sp' if sp else 'tp', default_dp_type='zero2')
        plan = search(spec, hardware, ModelProfile.analytic(spec, 'h100'), args).plan
        if plan is None: none.add(name)
        else: assert not plan.violations(args.world_size, spec, RunOptions(sequence_parallel=sp)), name
    assert none==TOO_LARGE[8*nodes]
