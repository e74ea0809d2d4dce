"The main job, whole, as the README tells a new user to run it (with fewer ranks and steps)"
import json, os, re, shutil, subprocess, sys

import pytest
from galvatron import cli
from galvatron.plan import Plan

def shell(cwd, *args, timeout=400, **env):
    return subprocess.run([sys.executable, '-m', 'galvatron', *map(str, args)], cwd=cwd, capture_output=True, text=True, timeout=timeout, env=os.environ|env)

@pytest.fixture(scope='module')
def done(tmp_path_factory):
    tmp = tmp_path_factory.mktemp('new_user')
    r = shell(tmp, 'quickstart', '--nproc', 2, '--train_iters', 20, CUDA_VISIBLE_DEVICES='')
    assert r.returncode==0, r.stdout[-3000:]+r.stderr[-3000:]
    return tmp/'quickstart',r

def test_everything_a_user_would_have(done):
    out,_ = done
    for f in ('topics.jsonl', 'model/config.json', 'data/topics_text_document.bin', 'hardware_configs/hardware_profile_1nodes_2gpus_per_node.json',
              'configs/computation_profiling_fp32_hidden128_head4.json', 'configs/memory_profiling_fp32_hidden128_head4.json', 'metrics.jsonl', 'plan.html', 'commands.sh'):
        assert (out/f).stat().st_size>0, f
    plan = Plan.load(next((out/'configs').glob('galvatron_config_*.json')), 2)
    assert plan.provenance['predicted_ms']>0 and len(plan.provenance['predicted_peak_mib'])==plan.pp_deg
    assert (out/'checkpoint/iter_0000020/checkpoint.json').exists()

def test_it_learned(done):
    losses = [r['loss'] for r in map(json.loads, open(done[0]/'metrics.jsonl')) if 'loss' in r]
    assert len(losses)==20 and losses[-1]<losses[0]-1

def test_what_it_says(done):
    out,r = done
    table = re.search(r'predicted +measured\n.*?\n\n', r.stdout, re.S)[0]
    for row in 'step time, ms', 'tokens/s', 'peak memory', 'loss, first and last step', 'held-out loss': assert row in table
    assert 'Traceback' not in r.stderr and '\r' not in r.stderr # no progress bars where nobody looks
    said = re.findall(r'^galvatron .*', r.stdout, re.M)
    assert len(said)==5 and said==[l for l in (out/'commands.sh').read_text().splitlines() if l.startswith('galvatron')]

def test_for_programs(done, tmp_path, monkeypatch, capsys):
    "The same as JSON; its steps are not run again: they leave what the run above left"
    out,r = done
    def again(folder, i, n, what, words, printed):
        print(words[0])
        if i==1:
            for f in out.iterdir(): shutil.copytree(f, folder/f.name, dirs_exist_ok=True) if f.is_dir() else shutil.copy(f, folder)
        return 1.
    monkeypatch.setattr(cli, 'run_step', again)
    assert cli.main(['quickstart', '--nproc', '2', '--out', str(tmp_path/'q'), '--json'])==0
    said,err = capsys.readouterr()
    facts = json.loads(said)
    assert list(facts)==cli.JSON['quickstart'].split() and 'preprocess-data' in err and len(facts['commands'])==5
    row = re.search(r'step time, ms +([\d.]+) +([\d.]+)', r.stdout)
    assert [f"{facts[k]['step_ms']:.1f}" for k in ('predicted', 'measured')]==list(row.groups())

def test_steps_repeat_by_hand(done):
    "The search, run again by hand with the printed words, writes the same plan"
    out,_ = done
    plan = next((out/'configs').glob('galvatron_config_*.json'))
    before = Plan.load(plan)
    words = next(l for l in (out/'commands.sh').read_text().splitlines() if l.startswith('galvatron search')).split()[1:]
    r = shell(out, *words)
    assert r.returncode==0 and Plan.load(plan)==before, r.stderr

def test_other_peoples_folders_are_left_alone(tmp_path, capsys):
    (tmp_path/'mine.txt').write_text('x')
    assert cli.main(['quickstart', '--out', str(tmp_path)])==2 and (tmp_path/'mine.txt').exists()
    assert 'not empty' in capsys.readouterr().err

def test_bad_plan_is_refused_before_ranks_start(tmp_path):
    f = Plan.from_text('2-2*-2 x2 || 2-2*-2 x2', global_bsz=16).save(tmp_path/'p.json')
    r = shell(tmp_path, 'train', '--nproc', 4, '--model_type', 'gpt_hf', '--num_hidden_layers', 6, '--galvatron_config_path', f, '--mock_data', '--train_iters', 1)
    assert r.returncode==2 and 'tp_sizes_enc: 4 entries' in r.stderr and r.stderr.count('\n')<6 and 'Traceback' not in r.stderr
