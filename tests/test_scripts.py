"The scripts of the model zoo, copied by `galvatron init` and run by a shell as shipped, with small numbers in place of the model's"
import json, os, shlex, subprocess
from pathlib import Path

import numpy as np, pytest, torch
from safetensors.torch import load_file, save_file

from galvatron.checkpoint.huggingface import hf_class
from galvatron.cli import ModelArgs, main, parse
from galvatron.model_spec import model_types

LAYERS = '--hidden_size 64 --num_hidden_layers 2 --num_attention_heads 4 --mixed_precision fp32'
TINY = f'{LAYERS} --vocab_size 257 --seq_length 32'
SMALL = dict.fromkeys(('llama_hf', 'llama_fa', 'gpt_hf', 'gpt_fa', 'baichuan_hf', 'baichuan_fa'), TINY) | dict(
    bert_hf=f'{LAYERS} --vocab_size 290 --seq_length 64', t5_hf=f'{LAYERS} --vocab_size 290 --seq_length 64',
    vit_hf=f'{LAYERS} --image_size 32 --patch_size 8 --num_labels 10',
    swin_hf='--embed_dim 32 --depths 2 2 --num_heads 2 4 --window_size 2 --image_size 32 --patch_size 4 --num_labels 10 --mixed_precision fp32')
DATA = dict(vit_hf='pictures.npz', swin_hf='pictures.npz', bert_hf='text_text_sentence', t5_hf='text_text_sentence')
ROOT = Path(__file__).resolve().parent.parent/'galvatron'
PYTHON3 = '#!/bin/sh\nfor w; do printf "%s\\n" "$w"; done > "$WORDS"\npwd >> "$WORDS"\n' # notes its words and its folder

@pytest.fixture(scope='module')
def work(tmp_path_factory):
    "The folders as `galvatron init` makes them, without the shipped profiles, and a python3 that only notes its words"
    d = tmp_path_factory.mktemp('work')
    assert main(['init', str(d)])==0
    for p in d.glob('**/*.json'): p.unlink() # another device's
    (d/'bin').mkdir()
    (d/'bin/python3').write_text(PYTHON3); (d/'bin/python3').chmod(0o755)
    text = d/'text.jsonl'
    text.write_text(''.join(json.dumps({'text': f'{i} green bottles. Hanging on the wall. '*4})+'\n' for i in range(99)))
    assert main(['preprocess-data', '--input', str(text), '--output-prefix', str(d/'text')])==0
    (d/'vocab.txt').write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'green bottles hanging on the wall .'.split(), *map(str, range(99))]))
    assert main(['preprocess-data', '--input', str(text), '--output-prefix', str(d/'text'), '--split-sentences', '--tokenizer-type', 'BertWordPieceLowerCase',
                 '--vocab-file', str(d/'vocab.txt'), '--vocab-extra-ids', '20'])==0
    np.savez(d/'pictures.npz', images=np.random.default_rng(0).integers(0, 255, (40, 40, 40, 3), np.uint8), labels=np.arange(40)%10)
    return d

def words_of(script, work, given='', shell='sh', **env):
    "What a script tells python3, and the folder it stands in"
    env = os.environ | dict(PATH=f"{work/'bin'}:{os.environ['PATH']}", PYTHON=str(work/'bin/python3'), WORDS=str(work/'words')) | env
    r = subprocess.run([shell, str(script), *shlex.split(given)], env=env, capture_output=True, text=True)
    if r.returncode: return None, r.stderr
    *words, here = (work/'words').read_text().splitlines()
    assert words[:2]==['-m','galvatron'], words
    return words[2:], here

def run(script, work, monkeypatch, given='', **env):
    "Run the command of a script in this process, where the script would"
    for k,v in env.items(): monkeypatch.setenv(k, v)
    words,here = words_of(script, work, given)
    assert words, here
    monkeypatch.chdir(here)
    assert main(words)==0

def test_the_guides_scripts_are_all_there():
    names = {'profile_computation','profile_memory','search_dist','train_dist','train_dist_random'}
    for kind in SMALL:
        assert {p.stem for p in (ROOT/'model_zoo'/kind/'scripts').glob('*.sh')}==names and (ROOT/'model_zoo'/kind/'configs').is_dir()
        name = kind.partition('_')[0]
        assert {p.name for p in (ROOT/'model_zoo'/kind/'tools').iterdir()}=={f'convert_{name}_{way}.sh' for way in ('h2g','g2h')}
    assert {p.name for p in (ROOT/'model_zoo').iterdir() if p.is_dir()}=={*SMALL, 'common'} and set(SMALL)==set(model_types)
    assert (ROOT/'profile_hardware/scripts/profile_hardware.sh').exists()

@pytest.mark.timeout(120)
def test_hardware(work, monkeypatch):
    run(work/'profile_hardware/scripts/profile_hardware.sh', work, monkeypatch, '--end_mb 1 --max_call_ms 2', NUM_GPUS_PER_NODE='2')
    assert {p.name for p in (work/'profile_hardware/hardware_configs').glob('*.json')}=={
        *(f'{n}_1nodes_2gpus_per_node.json' for n in ('allreduce_bandwidth','p2p_bandwidth','sp_time','hardware_profile')), 'overlap_coefficient.json'}

@pytest.mark.timeout(120)
@pytest.mark.parametrize('kind', SMALL)
def test_profile_search_train(kind, work, monkeypatch, capfd):
    s, TINY = work/'model_zoo'/kind/'scripts', SMALL[kind]
    run(s/'profile_computation.sh', work, monkeypatch, f'{TINY} --max_tp_deg 2 --budget_ms 1 --profile_max_batch_size 2')
    run(s/'profile_memory.sh', work, monkeypatch, f'{TINY} --max_tp_deg 2 --profile_batch_size 2')
    assert {p.name.partition('_')[0] for p in (s.parent/'configs').glob('*.json')}>={'computation','memory'}
    run(s/'search_dist.sh', work, monkeypatch, f'{TINY} --settle_bsz 8 --settle_chunk 2', NUM_GPUS_PER_NODE='2', MEMORY_CONSTRAINT='2')
    plan, = (s.parent/'configs').glob('galvatron_config_*.json')
    assert json.loads(plan.read_text())['global_bsz']==8
    quick = f'{TINY} --global_train_batch_size 4 --train_iters 2 --eval_iters 0'
    run(s/'train_dist.sh', work, monkeypatch, quick, NUM_GPUS_PER_NODE='1', DATA_PATH=str(work/DATA.get(kind, 'text_text_document')))
    run(s/'train_dist_random.sh', work, monkeypatch, quick, NUM_GPUS_PER_NODE='1')
    assert main(['plan', 'check', str(plan), '--num_gpus_per_node', '2', '--model_type', kind, *shlex.split(TINY)])==0
    out = capfd.readouterr().out
    assert out.count('step time')==2, out

def published(kind, path):
    "A folder with random weights, as it is on the hub"
    torch.manual_seed(0)
    spec = parse('model', shlex.split(SMALL[kind].partition('--mixed')[0])+['--model_type', kind], ModelArgs)[0].spec()
    model = hf_class(spec.hf_config())(spec.hf_config())
    model.save_pretrained(path)
    if 'baichuan' in kind: # which transformers does not have: a Llama whose projections are packed
        tensors = load_file(path/'model.safetensors')
        for i in range(2): tensors[f'model.layers.{i}.self_attn.W_pack.weight'] = torch.cat([tensors.pop(f'model.layers.{i}.self_attn.{k}_proj.weight') for k in 'qkv'])
        save_file(tensors, path/'model.safetensors')
        (path/'config.json').write_text(json.dumps(spec.config))

@pytest.mark.parametrize('kind', SMALL)
def test_conversions(kind, work):
    "Into a checkpoint and out again: the same names, types and bits"
    name, d = kind.partition('_')[0], work/f'convert-{kind}'
    published(kind, d/'hf')
    for way,source,out in ('h2g', 'hf', 'g'), ('g2h', 'g', 'back'):
        words,_ = words_of(work/f'model_zoo/{kind}/tools/convert_{name}_{way}.sh', work, shell='bash', INPUT_PATH=str(d/source), OUTPUT_PATH=str(d/out))
        assert main(words)==0
    a, b = load_file(d/'hf/model.safetensors'), load_file(d/'back/model.safetensors')
    assert a.keys()==b.keys() and all(torch.equal(a[n], b[n]) and a[n].dtype==b[n].dtype for n in a)

@pytest.mark.timeout(120)
def test_the_plan_that_was_found_trains_on_two_ranks(work):
    "The only script that runs with the real python3"
    d = work/'model_zoo/llama_hf'
    plan, = (d/'configs').glob('galvatron_config_*.json')
    env = os.environ | dict(PYTHONPATH=str(ROOT.parent), NUM_GPUS_PER_NODE='2', NUM_NODES='1', CUDA_VISIBLE_DEVICES='', OMP_NUM_THREADS='1')
    r = subprocess.run(['sh', 'scripts/train_dist_random.sh', *shlex.split(TINY), '--galvatron_config_path', f'configs/{plan.name}', '--train_iters', '2', '--eval_iters', '0', '--time_limit', '100'],
                       cwd=d, env=env, capture_output=True, text=True)
    assert r.returncode==0, r.stderr
    assert 'loss' in r.stdout

def test_environment_and_words_reach_the_command(work):
    d = work/'model_zoo/gpt_hf/scripts'
    words,here = words_of(d/'search_dist.sh', work, '--settle_bsz 32', NUM_NODES='4', NUM_GPUS_PER_NODE='4', MODEL_SIZE='gpt-6.7b')
    said = dict(zip(words[1::2], words[2::2]))
    assert (said['--model_size'],said['--num_nodes'],said['--num_gpus_per_node'],words[-2:])==('gpt-6.7b','4','4',['--settle_bsz','32'])
    assert Path(here)==d.parent
    words,_ = words_of(work/'profile_hardware/scripts/profile_hardware.sh', work, NUM_NODES='2', NUM_GPUS_PER_NODE='8')
    assert words[:5]==['profile-hardware','--num_nodes','2','--num_gpus_per_node','8']
    words,said = words_of(d/'train_dist.sh', work)
    assert words is None and 'DATA_PATH' in said # without data: one line
