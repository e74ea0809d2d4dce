"Checkpoints: any plan to any plan, killed and damaged ones, failures of one rank"
import json, os, subprocess, sys
from pathlib import Path

import pytest, torch
from transformers import AutoConfig, AutoModelForCausalLM

from galvatron.plan import LayerStrategy as S, Plan, RunOptions, VocabStrategy as V
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
