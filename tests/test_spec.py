"Every count of a ModelSpec equals the HuggingFace model built on the meta device; FLOPs equal what torch counts"
import json, subprocess, sys

import pytest

from galvatron.model_spec import ModelSpec, _constants, _families, canonical_model_type, model_sizes
from galvatron.plan import GalvatronError

pytestmark = pytest.mark.filterwarnings('ignore')

LAYERS = dict(llama_dec='model.layers.{}.', gpt_dec='transformer.h.{}.', bert_enc='bert.encoder.layer.{}.', t5_enc='encoder.block.{}.', t5_dec='decoder.block.{}.', vit_enc='vit.layers.{}.')
KINDS = dict(bert='MaskedLM', t5='Seq2SeqLM', vit='ImageClassification', swin='ImageClassification')

def hf_model(spec):
    import torch, transformers
    auto = getattr(transformers, f"AutoModelFor{KINDS.get(spec.config['model_type'], 'CausalLM')}")
    with torch.device('meta'): return auto.from_config(spec.hf_config())

def layer_names(spec):
    "Prefix of every layer in the HuggingFace model, in the order of the spec"
    for s,t in enumerate(spec.layer_types):
        for i in range(t.count): yield t, LAYERS[t.name].format(i) if t.name!='swin_enc' else f'swin.encoder.layers.{s}.blocks.{i}.'

def check(spec):
    m = hf_model(spec)
    sizes = {n:p.numel() for n,p in m.named_parameters()}
    assert spec.params==sum(sizes.values())
    left = dict(sizes)
    for t,prefix in layer_names(spec):
        mine = {n:left.pop(n) for n in list(left) if n.startswith(prefix)}
        tables = sum(v for n,v in mine.items() if 'relative_attention_bias' in n) # T5 keeps its tables in the first layers, we in the embedding
        assert sum(mine.values())-tables==t.params, prefix
        kv = sum(v for n,v in mine.items() if any(k in n for k in ('k_proj', 'v_proj', '.key.', '.value.', 'Attention.k.', 'Attention.v.')))
        if t.name!='gpt_dec': assert kv==t.kv_params # GPT-2 has one matrix for all three

SMALL = [
    ('llama_hf', dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96, vocab_size=131, layers=3, seq=32)),
    ('llama_hf', dict(hidden_size=64, num_attention_heads=4, intermediate_size=96, vocab_size=131, layers=2, seq=32, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    ('llama_hf', dict(hidden_size=64, num_attention_heads=4, head_dim=24, intermediate_size=96, vocab_size=131, layers=2, seq=32)),
    ('gpt_hf', dict(hidden_size=64, num_attention_heads=4, vocab_size=131, layers=3, seq=32)),
    ('bert_hf', dict(hidden_size=64, num_attention_heads=4, vocab_size=131, layers=3, seq=32)),
    ('t5_hf', dict(hidden_size=64, num_attention_heads=4, head_dim=8, d_ff=128, vocab_size=131, layers=(2, 3), seq=(32, 16))),
    ('t5_hf', dict(hidden_size=64, num_attention_heads=4, head_dim=24, d_ff=128, vocab_size=131, layers=2, seq=32, feed_forward_proj='gated-gelu')),
    ('vit_hf', dict(hidden_size=64, num_attention_heads=4, layers=2, image_size=32, patch_size=8, num_labels=7)),
    ('swin_hf', dict(embed_dim=32, layers=(2, 2, 1, 1), num_heads=(2, 4, 4, 8), window_size=4, image_size=128, num_labels=7)),
]

@pytest.mark.parametrize('model_type,kw', SMALL, ids=lambda v: v if isinstance(v, str) else '')
def test_small_models(model_type, kw):
    check(ModelSpec.from_size(model_type, None, **kw))

@pytest.mark.parametrize('hf', ['qwen2', 'qwen3', 'mistral'])
def test_llama_relatives(hf):
    for more in ({}, dict(attention_bias=True, mlp_bias=True)): # switches of Llama, of which these have one or none
        check(ModelSpec.from_hf(dict(model_type=hf, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96, vocab_size=131, num_hidden_layers=3, **more), seq=32))

@pytest.mark.parametrize('name', [n for k in ('llama_hf','baichuan_hf','gpt_hf','bert_hf','t5_hf','vit_hf','swin_hf') for n in model_sizes(k)])
def test_whole_zoo(name):
    "Real sizes, cut to a few layers so that building them is quick, and their full count from the formula"
    family = next(k for k in ('llama_hf','baichuan_hf','gpt_hf','bert_hf','t5_hf','vit_hf','swin_hf') if name in model_sizes(k))
    full = ModelSpec.from_size(family, name)
    few = (1,)*4 if family=='swin_hf' else 2
    cut = ModelSpec.from_size(family, name, layers=few)
    check(cut)
    assert full.params-cut.params==sum((a.count-b.count)*b.params for a,b in zip(full.layer_types, cut.layer_types))

@pytest.mark.parametrize('name,params', {'llama-7b':6738415616, 'llama2-70b':68976648192, 'llama3-8b':8030261248, 'llama3-70b':70553706496, 'llama3-405b':405853388800, 'llama-3.2-1b':1235814400,
                                         'llama-3.2-3b':3212749824, 'qwen2.5-7b':7615616512, 'qwen2.5-72b':72706203648, 'qwen3-8b':8190735360, 'mistral-7b':7248023552}.items())
def test_published_counts(name, params):
    "Counts as the released checkpoints have them"
    assert ModelSpec.from_size('llama_hf', name).params==params

@pytest.mark.parametrize('hf', sorted(set(_families)-{'baichuan'}))
def test_defaults_are_huggingface_s(hf):
    "An almost empty config.json means the same here as in transformers"
    from transformers import AutoConfig
    config = AutoConfig.for_model(hf).to_dict()
    ours = ModelSpec.from_hf(dict(model_type=hf))
    theirs = ModelSpec.from_hf(config)
    assert ours.digest()==theirs.digest()==ModelSpec.from_hf(AutoConfig.for_model(hf)).digest()==ModelSpec.from_hf(ours.hf_config()).digest()

@pytest.mark.parametrize('model_type,kw', SMALL, ids=lambda v: v if isinstance(v, str) else '')
def test_flops_are_torch_s(model_type, kw):
    "torch's own counter on the meta device, with every attention mask computed in full"
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    spec = ModelSpec.from_size(model_type, None, **kw)
    m = hf_model(spec)
    m.config._attn_implementation = 'eager'
    for sub in m.modules():
        if hasattr(sub, 'config'): sub.config._attn_implementation = 'eager'
    B = 2
    ids = lambda n: torch.zeros(B, n, dtype=torch.long, device='meta')
    if model_type in ('vit_hf', 'swin_hf'): x = dict(pixel_values=torch.zeros(B, 3, m.config.image_size, m.config.image_size, device='meta'))
    elif model_type=='t5_hf': x = dict(input_ids=ids(spec.layer_types[0].seq), decoder_input_ids=ids(spec.seq))
    else: x = dict(input_ids=ids(spec.seq))
    with FlopCounterMode(display=False) as fc, torch.no_grad(): m(**x)
    assert fc.get_total_flops()==pytest.approx(spec.forward_flops(B, causal=False), rel=1e-3) # rotary tables are tiny products of their own

def test_conventions():
    s = ModelSpec.from_hf(dict(model_type='llama', hidden_size=4096, intermediate_size=14336, num_key_value_heads=8, vocab_size=128256), seq=8192)
    per_token = lambda causal: s.step_flops(causal=causal)/8192/1e9
    assert per_token(False)==pytest.approx(57.9, abs=.1) and per_token(True)==pytest.approx(51.5, abs=.1) # Llama-3.1-8B at 8,192 in both conventions
    assert s.step_flops(2, recomputed=range(32))==pytest.approx(3*s.forward_flops(2) + 32*s.layer_types[0].forward_flops(2))
    t = ModelSpec.from_hf(dict(model_type='mistral', sliding_window=1024), seq=4096).layer_types[0]
    pairs = lambda c: sum(min(q+1, 1024) for q in range(4096)) if c else 4096*1024
    assert t.attention_pairs(False)==pairs(False) and t.attention_pairs(True)==pytest.approx(pairs(True), rel=1e-3)

def test_every_way_in(tmp_path):
    "A file, its folder, a dict, a config object and a model"
    c = dict(model_type='llama', hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96, vocab_size=131, num_hidden_layers=3, max_position_embeddings=32)
    (tmp_path/'config.json').write_text(json.dumps(c))
    spec = ModelSpec.from_hf(c)
    for src in (tmp_path, str(tmp_path/'config.json'), spec.hf_config(), hf_model(spec)): assert ModelSpec.from_hf(src).digest()==spec.digest()
    assert hash(spec) is not None and spec==ModelSpec.from_hf(c)
    assert [spec.layer_type(i).name for i in range(3)]==['llama_dec']*3
    with pytest.raises(IndexError): spec.layer_type(3)

def test_old_rope_keys_survive():
    "config.json files of older transformers put rope_theta at the top"
    c = dict(model_type='llama', rope_theta=5e5, rope_scaling=None)
    assert ModelSpec.from_hf(c).hf_config().rope_parameters['rope_theta']==5e5

@pytest.mark.parametrize('hf', [h for h in _constants if h!='baichuan'])
def test_constants_reach_the_model(hf):
    "What changes no shape is taken only if the family's config has it, under whatever name it is given"
    import transformers
    own = transformers.AutoConfig.for_model(hf).to_dict()
    for name,names in _constants[hf].items(): assert set(names)<=set(own), name
    if hf not in ('llama', 'gpt2', 't5', 'bert', 'vit', 'swin'): return # no size without a name
    for kw in dict(hidden_dropout_prob=.125), dict(attention_probs_dropout_prob=.125), dict(layer_norm_eps=.125):
        make = lambda: ModelSpec.from_size(_families[hf][0], **kw).hf_config().to_dict()
        if next(iter(kw)) in _constants[hf]: assert .125 in make().values()
        else:
            with pytest.raises(GalvatronError, match='unknown model option'): make()

def test_names_and_overrides():
    fa, hf = ModelSpec.from_size('llama_fa', 'llama-7b'), ModelSpec.from_size('llama_hf', 'llama-7b', layers=4)
    assert fa.name=='hidden4096_head32' and hf.name=='llama-7b' and hf.n_layers==4 and fa.layer_types[0].params==hf.layer_types[0].params
    wide = ModelSpec.from_size('llama_hf', 'llama-7b', hidden_size=1024, num_attention_heads=16)
    assert wide.name=='hidden1024_head16' and wide.layer_types[0].ffn==2816 and wide.layer_types[0].kv_heads==16
    assert ModelSpec.from_size('gpt_hf', 'gpt-0.3b', seq=2048).config['n_positions']==2048
    assert [canonical_model_type(n) for n in ('T5', 'swin', 'llama-hf', 'gpt')]==['t5_hf', 'swin_hf', 'llama_hf', 'gpt_hf']
    s = ModelSpec.from_size('gpt_hf', 'gpt-0.3b')
    assert (s.padded_vocab(), s.padded_vocab(1, 4), s.padded_vocab(128, 3), s.padded_vocab(1))==(50304, 50260, 50304, 50257)

@pytest.mark.parametrize('make,words', [
    (lambda: ModelSpec.from_size('lama_hf', 'llama-7b'), ['--model_type', 'lama_hf', 'llama_hf']),
    (lambda: ModelSpec.from_size('llama_hf', 'llama-8b'), ['--model_size', 'llama-8b', 'llama3-8b']),
    (lambda: ModelSpec.from_size('llama_hf', 'llama-7b', hidden_size=100), ['hidden_size', '100', 'num_attention_heads']),
    (lambda: ModelSpec.from_size('llama_hf', 'llama-7b', num_key_value_heads=5), ['num_key_value_heads', '5']),
    (lambda: ModelSpec.from_size('llama_hf', 'llama-7b', hiden_size=64), ['hiden_size', 'hidden_size']),
    (lambda: ModelSpec.from_size('gpt_hf', 'gpt-0.3b', num_attention_heads=0), ['n_head', '0']),
    (lambda: ModelSpec.from_hf(dict(model_type='gpt2'), seq=2048), ['2048', 'n_positions', '1024']),
    (lambda: ModelSpec.from_hf(dict(model_type='mamba')), ['mamba', 'llama']),
    (lambda: ModelSpec.from_hf({}), ['model_type', 'None']),
    (lambda: ModelSpec.from_hf('/no/such/folder'), ['/no/such/folder']),
    (lambda: ModelSpec.from_hf(dict(model_type='vit', image_size=225)), ['image_size', '225', 'patch_size']),
    (lambda: ModelSpec.from_hf(dict(model_type='qwen2', use_sliding_window=True)), ['use_sliding_window']),
    (lambda: ModelSpec.from_hf(dict(model_type='llama', num_hidden_layers=-1)), ['num_hidden_layers', '-1']),
    (lambda: ModelSpec.from_hf(dict(model_type='llama', num_hidden_layers='3')), ['num_hidden_layers', "'3'"]),
    (lambda: ModelSpec.from_hf(dict(model_type='llama', intermediate_size=None)), ['intermediate_size', 'None']),
    (lambda: ModelSpec.from_hf(dict(model_type='llama', head_dim=2.5)), ['head_dim', '2.5']),
    (lambda: ModelSpec.from_hf(dict(model_type='t5', num_decoder_layers=0)), ['num_decoder_layers', '0']),
    (lambda: ModelSpec.from_hf(dict(model_type='swin', depths=[2, 0])), ['depths', '[2, 0]']),
    (lambda: ModelSpec.from_hf(dict(model_type='vit', image_size=[32, 64])), ['image_size', 'square']),
    (lambda: ModelSpec.from_hf(dict(model_type='gpt2', add_cross_attention=True)), ['add_cross_attention']),
    (lambda: ModelSpec.from_size('llama_hf', 'mistral-7b', mlp_bias=True), ['mlp_bias', 'mistral']),
])
def test_mistakes(make, words):
    with pytest.raises(GalvatronError) as e: make()
    assert all(w in str(e.value) for w in words) and '\n' not in str(e.value)

def test_no_torch():
    code = "import sys; from galvatron.model_spec import ModelSpec; ModelSpec.from_size('llama_hf', 'llama-7b'); assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, '-c', code], check=True, timeout=60)

def test_names_that_people_give_to_llama_2():
    "7B and 13B have the shapes of the first Llama with twice the sequence; 70B has one of its own"
    for n in ('7b', '13b'):
        for name in (f'llama2-{n}', f'llama-2-{n}', f'Llama-2-{n}-hf', f'llama_2_{n}_chat_hf', f'Llama-v2-{n}'):
            with pytest.raises(GalvatronError, match=f'did you mean llama-{n} --seq_length 4096[?]'): ModelSpec.from_size('llama_hf', name)
            with pytest.raises(GalvatronError, match=f'did you mean --model_size llama-{n} --seq_length 4096[?]'): ModelSpec.from_hf(name)
    with pytest.raises(GalvatronError, match='did you mean llama2-70b[?]'): ModelSpec.from_size('llama_hf', 'llama-2-70b')

def test_a_name_that_is_nowhere_is_said_at_once(tmp_path, monkeypatch):
    "No library's retries: a cache, a few seconds for a server that does not answer, and no server at all for what is no id"
    import socket, time
    monkeypatch.chdir(tmp_path)
    (tmp_path/'my-llama').mkdir()
    (tmp_path/'my-llama/config.json').write_text('{"model_type": "gpt2"}')
    from huggingface_hub import constants
    monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', False)
    asked = []
    monkeypatch.setattr('galvatron.model_spec._answers', lambda url: asked.append(url))
    for name, words in (('my-lama', 'did you mean my-llama?'), ('llama-7bb', 'did you mean --model_size llama-7b?'), ('nothing.like.it', 'owner/name'), ('configs/none.json', 'neither')):
        with pytest.raises(GalvatronError, match=words): ModelSpec.from_hf(name)
    assert asked==[] and ModelSpec.from_hf('my-llama').model_type=='gpt_hf'
    with pytest.raises(GalvatronError, match='owner/my-lama: not a file or folder here, and http.* cannot be reached'): ModelSpec.from_hf('owner/my-lama')
    assert len(asked)==1
    monkeypatch.undo()
    from galvatron import model_spec
    monkeypatch.setattr(model_spec, 'HUB_SECONDS', .3)
    with socket.create_server(('127.0.0.1', 0)) as silent:
        began = time.monotonic()
        assert not model_spec._answers(f'http://127.0.0.1:{silent.getsockname()[1]}') and time.monotonic()-began<2

def test_a_record_is_refused_if_it_is_none():
    for said in ({}, dict(config=5, seq=1, name='x', model_type='llama_hf'), dict(config=dict(model_type='llama'), seq='a', name='x', model_type='llama_hf'), dict(config=dict(model_type=[]), seq=1, name='x', model_type='llama_hf'), dict(config=dict(model_type='swin', mlp_ratio='x'), seq=None, name='x', model_type='swin_hf'), dict(config=dict(model_type='llama', hidden_size='4'), seq=1, name='x', model_type='llama_hf')):
        with pytest.raises(GalvatronError): ModelSpec.from_record(said)
