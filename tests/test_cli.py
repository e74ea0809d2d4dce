"The command line as people meet it"
import json, os, re, resource, shlex, shutil, subprocess, sys
from pathlib import Path
from dataclasses import dataclass, field
from typing import Literal

import pytest
from galvatron import cli
from galvatron.plan import GalvatronError, LayerStrategy, Plan, RunOptions

def run(capsys, line):
    rc = cli.main(line.split() if isinstance(line, str) else line)
    return (rc, *capsys.readouterr())

@dataclass
class Mixed:
    a_number:int=3
    maybe_text:str|None=None
    ratio:float|None=.5
    choice:Literal['x','y']='x'
    several:list[int]|None=None
    off_switch:bool=False
    on_switch:bool=True
    named:int|None=field(default=None, metadata={'aliases':['-n','--another_name']})

LINES = ['', '--a_number 4', '--a-number 4 --maybe-text hello', '--ratio 1e-3', '--choice y', '--several 1 2 3 --off_switch', '--off-switch 1 --on-switch 0',
         '--no_on_switch', '--no-on-switch', '-n 5', '--another_name 6 --on_switch true']

@pytest.mark.parametrize('line', LINES)
def test_same_as_hf_argument_parser(line):
    from transformers import HfArgumentParser
    theirs, = HfArgumentParser(Mixed).parse_args_into_dataclasses(line.split(), look_for_args_file=False)
    assert cli.parse('x', line.split(), Mixed)[0]==theirs

@pytest.mark.parametrize('dc', [Mixed, cli.ModelArgs, cli.PlanArgs, RunOptions])
def test_same_names_as_hf_argument_parser(dc):
    import argparse
    from transformers import HfArgumentParser
    ours = argparse.ArgumentParser()
    cli.add_arguments(ours, dc)
    assert set(HfArgumentParser(dc)._option_string_actions)==set(ours._option_string_actions)

@pytest.mark.parametrize('line,words', [
    ('serach', ['no command', 'did you mean search']),
    ('plan chek f', ['plan check or plan show']),
    ('plan', ['plan check']),
    ('plan check', ['plan check: the following arguments are required: file']),
    ('plan check f --wrld_size 3', ['--wrld_size', 'did you mean --world_size?']),
    ('convert g2h ck hf --dtype fp', ["--dtype: invalid choice: 'fp' (choose from 'fp32', 'fp16', 'bf16') (did you mean fp32?)"]),
    ('plan check f --num_hidden_layers 0 --world_size 2', ['num_hidden_layers: 0 is not allowed']),
    ('train --load nowhere --mock_data --train_iters 1 --num_hidden_layers 1 --hidden_size 64', ['load: nowhere: no such folder']),
    ('plan check f --world_size many', ["--world_size", "invalid int value: 'many'"]),
    ('plan check f --world_size 4 --num_nodes 3', ['world_size 4 does not go with num_nodes 3']),
    ('plan show f --world_size 4 --num_nodes 2 --num_gpus_per_node 4', ['world_size 4 does not go with num_nodes 2 and num_gpus_per_node 4']),
    ('show f --num_gpus_per_node 0', ['num_gpus_per_node: 0 is not allowed']),
    ('show f --memory_constraint nan', ['memory_constraint: nan is not allowed']),
    ('doctor --num_nodes 2 --master_port 99999', ['master_port: 99999']),
    ('profile-model --analytic h200 --model_size llama-7b --mixed_precision int8', ["mixed_precision 'int8'"]),
    ('profile-model --analytic h200 --model_size llama-7b --profile_type times', ["profile_type 'times' (allowed: computation, memory, all)"]),
    ('profile-model --analytic h200 --model_size llama-7b --widths 3', ['none of the widths 3']),
    ('plan check f --mixed_precision fp7', ['mixed_precision', 'fp7', 'bf16']),
    ('plan check nowhere.json --world_size 8', ['nowhere.json: No such file']),
    ('train --mock_data --train_iters 1 --num_hidden_layers 2 --hidden_size 64 --nproc 2 --log_dir settings.ini', ['log_dir: ', 'settings.ini is a file']),
    ('train --mock_data --train_iters 1 --num_hidden_layers 2 --hidden_size 64 --nproc 2 --save settings.ini/x', ['save: ', 'settings.ini is a file']),
    ('search --analytic a100 --model_size llama-7b --num_gpus_per_node 0', ['num_gpus_per_node: 0 (allowed: above 0)']),
    ('search --analytic a100 --model_size llama-7b --disable_dp 2', ['disable_dp: 2 (allowed: 0, 1)']),
])
def test_errors_are_one_line(line, words, capsys):
    rc,out,err = run(capsys, line)
    assert rc==2 and out=='' and err.startswith('galvatron: error: ') and err.count('\n')==1
    assert [w for w in words if w not in err]==[], err

def test_what_a_machine_could_never_hold_is_refused(monkeypatch, capsys):
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    monkeypatch.setattr('galvatron.runtime.train.Trainer', lambda *a: pytest.fail('began'))
    assert cli.main(shlex.split('train --mock_data --train_iters 1 --model_size llama3-405b'))==2
    assert re.search('weights and optimizer of llama3-405b under this plan, for 1 rank without a GPU, would take 4,[0-9]{3} GiB, this machine has', capsys.readouterr().err)

def test_help_fits_a_screen(capsys):
    rc,out,_ = run(capsys, '--help')
    assert rc==0 and len(out.splitlines())<=24 and max(map(len, out.splitlines()))<=82
    for name in cli.COMMANDS: assert name in out

@pytest.mark.parametrize('name', cli.COMMANDS)
def test_each_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as e: cli.main([*name.split(), '--help'])
    out = capsys.readouterr().out
    assert e.value.code==0 and f'usage: galvatron {name}' in out and 'Args(' not in out # headings are words, not signatures

@pytest.mark.parametrize('name', cli.COMMANDS)
def test_each_command_has_examples_that_parse(name):
    found,parser = cli.examples(name),cli.parser_of(name)
    assert found
    for line in found:
        words = shlex.split(line.partition(' > ')[0])
        assert words[:1+len(name.split())]==['galvatron', *name.split()], line
        parser.parse_args(words[1+len(name.split()):]) # raises for an argument that does not exist

def spec(line): return cli.parse('x', line.split(), cli.ModelArgs)[0].spec()

def test_model_switches():
    "Numbers hold if typed, unless a switch says 0, as the scripts of the user guide do"
    shape = '--hidden_size 1024 --num_attention_heads 16 --num_hidden_layers 4 --seq_length 512'
    assert spec('--model_size llama-7b').n_layers==32
    assert (spec('--model_size llama-7b --num_hidden_layers 4 -s 512').n_layers, spec('--model_size llama-7b -s 512').seq)==(4, 512)
    zero = spec(f'--model_size llama-7b {shape} --set_model_config_manually 0 --set_layernum_manually 0 --set_seqlen_manually 0')
    assert zero.digest()==spec('--model_size llama-7b').digest()
    part = spec(f'--model_size llama-7b {shape} --set_model_config_manually 0 --set_layernum_manually 1 --set_seqlen_manually 0')
    assert (part.n_layers, part.layer_types[0].hidden)==(4, 4096)
    all_ = spec(f'--model_size llama-7b {shape} --set_model_config_manually 1 --vocab_size 1000')
    assert (all_.n_layers, all_.layer_types[0].hidden, all_.seq, all_.vocab)==(4, 1024, 512, 1000)
    for switch, wanted in (('set_layernum_manually', 'num_hidden_layers'), ('set_seqlen_manually', 'seq_length')):
        with pytest.raises(GalvatronError, match=f'{switch} 1 needs {wanted}'): spec(f'--model_size llama-7b --{switch} 1') # nothing takes the place of a forgotten number
    t5 = spec('--model_type t5_hf --model_size t5-base --num_encoder_layers 3 --num_decoder_layers 2')
    assert [t.count for t in t5.layer_types]==[3, 2]

def test_switches_are_named_as_they_are_typed():
    "What the search proposes can be pasted behind what was typed"
    from galvatron.search.engine import typed
    from galvatron.search.space import SearchArgs
    for line, change in (('', dict(async_grad_reduce=False)), ('--no_async_grad_reduce', dict(async_grad_reduce=True)), ('', dict(sequence_parallel=True)), ('--sequence_parallel', dict(sequence_parallel=False)),
                         ('--settle_bsz 64', dict(settle_bsz=8, num_nodes=2)), ('--settle_chunk 2', dict(settle_chunk=-1))):
        args,*_ = cli.parse('search', f'{line} {typed(change)}'.split(), SearchArgs)
        assert {k: getattr(args, k) for k in change}==change, (line, typed(change))

def plan(line, world=8):
    model,args,opts,_,given = cli.parse('x', line.split(), cli.ModelArgs, cli.PlanArgs, RunOptions)
    return args.plan(model.spec(), world, opts, given)

def test_global_mode():
    p = plan('--model_size llama-7b --num_hidden_layers 6 --pp_deg 2 --global_tp_deg 2 --global-tp-consec 0 --sdp 1 --global_train_batch_size 64 --chunks 4 --global_checkpoint 1 --pipeline_type pipedream_flush --vocab_tp 2')
    assert p==Plan((LayerStrategy(2, False, False, 'zero3', True),)*6, p.vocab, 2, (3,3), 'pipedream_flush', 4, 64) and p.vocab.width==2
    u = plan('--model_size llama-7b --use-ulysses --global_tp_deg 4 --vocab_tp 4 --global_train_batch_size 8')
    assert u.layers[0].ulysses and u.vocab.ulysses
    with pytest.raises(GalvatronError, match='global_bsz'): plan('--model_size llama-7b --global_train_batch_size 7')

def test_file_overrides_flags(tmp_path, capsys):
    "In JSON mode the flags of GLOBAL mode are ignored; those that differ are named"
    f = Plan.from_text('2-2*-2 x3 || 2-2*-2 x3', global_bsz=16).save(tmp_path/'p.json')
    line = f'--model_size llama-7b --num_hidden_layers 6 --galvatron_config_path {f}'
    assert plan(line).pp_deg==2 and capsys.readouterr().err==''
    plan(f'{line} --global_tp_deg -1 --global_tp_consec -1 --chunks -1')
    assert capsys.readouterr().err=='' # nothing was asked for
    plan(f'{line} --pp_deg 4 --global_tp_deg 2 --sdp 1')
    err = capsys.readouterr().err
    assert 'pp_deg 4 (the plan has 2)' in err and 'sdp 1 (the plan has 0)' in err and 'global_tp_deg' not in err
    assert plan('--model_size llama-7b --num_hidden_layers 6 --galvatron_config_path None').pp_deg==1

def test_the_launcher_looks_into_a_checkpoint_folder_without_torch(tmp_path):
    "It starts the ranks, or says which iterations there are, before anything slow is imported"
    (tmp_path/'iter_0000003').mkdir()
    (tmp_path/'iter_0000003'/'checkpoint.json').write_text('{}')
    line = f'train --nproc 2 --num_hidden_layers 1 --hidden_size 64 --num_attention_heads 4 --vocab_size 128 --seq-length 32 --mock_data --train_iters 1 --global_train_batch_size 2 --load {tmp_path}'
    code = "import sys; from galvatron import cli; from galvatron.runtime import launch; launch.relaunch = lambda *a: print('ranks') or 0; rc = cli.main(sys.argv[1:]); print('torch' in sys.modules); sys.exit(rc)"
    for words, rc, out, err in (([], 0, 'ranks\nFalse\n', ''), (['--load_iteration', '9'], 2, 'False\n', 'no iteration 9 (there are: 3)')):
        p = subprocess.run([sys.executable, '-c', code, *line.split(), *words], capture_output=True, text=True, timeout=60)
        assert (p.returncode, p.stdout)==(rc, out) and err in p.stderr, p.stderr

def test_picture(tmp_path, capsys):
    f = Plan.from_text('2-2*-2 x3 || 2-2*-2 x3').save(tmp_path/'p.json')
    rc,out,_ = run(capsys, f'plan show {f} --world_size 8 --image {tmp_path}/p.png')
    assert rc==0 and '2-2*-2' in out and (tmp_path/'p.png').stat().st_size>5000

def test_show_refuses_ranks_that_do_not_divide(tmp_path, capsys):
    f = Plan.from_text('2-2*-2 x3 || 2-2*-2 x3').save(tmp_path/'p.json')
    for world in 3, 2, 0, -8:
        rc,out,err = run(capsys, f'plan show {f} --world_size {world}')
        assert rc==2 and out=='' and err.startswith('galvatron: error: ') and (err.count('\n')==1 or world in (2, 3)), err

def test_explain(tmp_path, capsys):
    "A plan of any origin is priced, and what the search would choose instead stands beside it"
    plan = Plan((LayerStrategy(8),)*4, global_bsz=64).save(tmp_path/'plan.json')
    args = '--model_type llama_hf --model_size llama-7b --num_hidden_layers 4 --num_gpus_per_node 8 --memory_constraint 36 --settle_bsz 64 --analytic h200'
    rc,out,_ = run(capsys, f'explain {plan} {args}')
    assert rc==0 and 'predicted:' in out and 'the search' in out
    rc,_,err = run(capsys, f'explain {tmp_path}/none.json {args}')
    assert rc==2 and err.count('\n')==1 and 'none.json' in err

OWN = '--hidden_size 128 --num_attention_heads 4 --num_hidden_layers 4 --seq_length 64 --vocab_size 500 --analytic h200'

@pytest.fixture
def searched(tmp_path, monkeypatch, capsys):
    "A plan of a shape of one's own, for two ranks, and what the search said"
    monkeypatch.chdir(tmp_path)
    rc,out,err = run(capsys, f'search {OWN} --num_gpus_per_node 2 --memory_constraint 3.5 --settle_bsz 8 --mixed_precision fp16 --sp_space tp+sp --output_config_path plan.json')
    assert rc==0, err
    return Plan.load('plan.json'),out

def test_a_file_says_what_explain_show_and_plan_check_need(searched, capsys):
    plan,_ = searched
    said = plan.provenance
    rc,out,err = run(capsys, 'explain plan.json')
    assert rc==0 and out.startswith('plan.json was searched for hidden128_head4 on 2 ranks (1 x 2), 3.5 GiB each, fp16\n') and 'finds nothing faster' in out and 'the file records' not in out, err
    assert as_json(capsys, 'explain plan.json --json')['predicted_ms']==pytest.approx(said['predicted_ms'], rel=1e-4)
    shown = as_json(capsys, 'show plan.json --json')
    assert shown['plans'][0]['predicted_ms']==pytest.approx(said['predicted_ms'], rel=1e-4) and shown['notes']==[]
    checked = as_json(capsys, 'plan check plan.json --json')
    assert all(as_json(capsys, f'{command} plan.json --json')['fits'] is True for command in ('explain', 'plan check')) and '"True"' not in json.dumps(shown)
    assert checked['model']=='hidden128_head4' and checked['peak_mib']==pytest.approx(said['predicted_peak_mib'], abs=.1) and checked['fits'] and checked['budget_mib']==3584
    assert re.search(r'stage 0 \d+\.\d\d GiB.*; budget 3.50 GiB: it fits$', run(capsys, 'plan check plan.json')[1].strip())

def test_what_contradicts_a_record_is_said_or_refused(searched, capsys):
    plan,_ = searched
    assert 'here instead: memory_constraint 30 (the search had 3.5)\n' in run(capsys, 'explain plan.json --memory_constraint 30')[1]
    assert as_json(capsys, 'show plan.json --memory_constraint 30 --mixed_precision bf16 --json')['notes']==['The plan was searched for mixed_precision fp16 (here bf16), 3.5 GiB a rank (here 30).']
    for command in 'explain', 'show':
        rc,out,err = run(capsys, f'{command} plan.json --model_type llama_hf --model_size llama-7b')
        assert rc==2 and out=='' and err.count('\n')==1 and 'searched for another model, hidden128_head4' in err and 'llama-7b has' in err, err
    rc,out,_ = run(capsys, f"explain plan.json {OWN.partition(' --analytic')[0]}") # the same one
    assert rc==0 and 'here instead' not in out
    Plan(plan.layers, provenance={}).save('bare.json')
    rc,out,err = run(capsys, 'explain bare.json --analytic h200')
    assert rc==2 and out=='' and 'bare.json does not say which model' in err
    assert run(capsys, f'explain bare.json {OWN}')[1].startswith('bare.json does not say what it was searched for; defaults: num_nodes 1, num_gpus_per_node 8, memory_constraint 24\n')

def test_a_plan_on_another_number_of_ranks(searched, capsys):
    "Where it runs that is said; where it does not, that it was made for others is the first reason"
    plan,_ = searched
    rc,out,_ = run(capsys, 'plan check plan.json --world_size 4')
    assert rc==0 and 'runs on 4 ranks' in out and 'searched for 2 ranks (here 4): what the search predicted does not hold' in out and 'recorded' not in out
    for line in 'plan check plan.json --world_size 3', f"train --nproc 3 {OWN.partition(' --analytic')[0]} --galvatron_config_path plan.json --mock_data --train_iters 1", 'explain plan.json --num_gpus_per_node 3':
        rc,out,err = run(capsys, line)
        assert rc==2 and out=='' and 'this plan was made for 2 ranks, here are 3: search again for 3, or give 2' in err.splitlines()[1], err
    assert run(capsys, 'explain plan.json --num_gpus_per_node 4')[1].split('\n')[0].endswith('here instead: num_gpus_per_node 4 (the search had 2)')

def test_profiles_are_found_beside_the_plan(tmp_path, monkeypatch, capsys):
    "From another folder, as from the one in which it was searched"
    monkeypatch.chdir(tmp_path)
    shape = OWN.partition(' --analytic')[0]
    for line in ('profile-hardware --num_gpus_per_node 2 --analytic h200 --output_dir work/hardware_configs', f'profile-model {shape} --analytic h200 --output_dir work/configs'): assert run(capsys, line)[0]==0
    monkeypatch.chdir('work')
    assert run(capsys, f'search {shape} --num_gpus_per_node 2 --memory_constraint 4 --settle_bsz 8 --output_config_path configs/plan.json')[0]==0
    monkeypatch.chdir(tmp_path)
    rc,out,err = run(capsys, 'explain work/configs/plan.json')
    assert rc==0 and 'finds nothing faster' in out and 'the file records' not in out and err=='', err
    assert as_json(capsys, 'show work/configs/plan.json --json')['notes']==[] and 'as the search recorded' not in run(capsys, 'plan check work/configs/plan.json')[1]

def test_training_takes_a_predefined_model_from_the_plan(searched, capsys):
    rc,out,err = run(capsys, 'train --nproc 2 --galvatron_config_path plan.json --mock_data --train_iters 1')
    assert rc==2 and out=='' and err.count('\n')==1 and 'was searched for hidden128_head4, which is not as predefined' in err
    run(capsys, 'search --model_size llama-0.3b --num_gpus_per_node 8 --memory_constraint 30 --settle_bsz 8 --analytic h200 --output_config_path known.json')
    rc,out,err = run(capsys, 'train --nproc 3 --galvatron_config_path known.json --mock_data --train_iters 1')
    assert rc==2 and 'made for 8 ranks, here are 3' in err and 'tp_sizes_enc: 24 entries' not in err, err # its 24 layers were known

def test_training_says_in_what_it_differs_from_the_search(tmp_path, monkeypatch, capfd):
    "Which part of the model and which switches are others, and what to type; then nothing is compared with the prediction, which was for another run"
    monkeypatch.chdir(tmp_path)
    small = '--model_type llama_hf --hidden_size 64 --num_attention_heads 4 --num_hidden_layers 2 --vocab_size 128 --mixed_precision fp32'
    assert run(capfd, f'search {small} --seq_length 64 --num_gpus_per_node 1 --memory_constraint 4 --settle_bsz 2 --analytic h200 --no_async_grad_reduce --output_config_path plan.json')[0]==0
    train = f'train --nproc 1 {small} --galvatron_config_path plan.json --mock_data --train_iters 2 --eval_iters 0 --no_tensorboard'
    rc,out,err = run(capfd, f'{train} --seq_length 64 --log_dir logs')
    assert rc==0 and '(predicted ' in out and 'warning' not in err and 'as plan.json was searched for: --no_async_grad_reduce\n' in err, err
    shown = as_json(capfd, 'show plan.json --metrics logs --json')
    assert shown['measured']['of']=='2' and 'do not say' not in ' '.join(shown['notes'])
    rc,out,err = run(capfd, f'{train} --seq_length 128 --async_grad_reduce')
    assert rc==0 and 'step time' in out and 'predicted' not in out, out
    assert 'plan.json was searched for another model, seq 64 (here 128), async_grad_reduce False (here True): its predicted time and memory do not hold here (for the switches of the search: --no_async_grad_reduce)\n' in err, err

def test_plan_check_says_who_is_over_the_budget(searched, capsys):
    plan,_ = searched
    d = json.loads(Path('plan.json').read_text())
    d['galvatron']['memory_constraint_gib'] = 1
    Path('small.json').write_text(json.dumps(d))
    rc,out,_ = run(capsys, 'plan check small.json')
    assert out.startswith('small.json: can run on 2 ranks with hidden128_head4, but is over its memory budget\n') and run(capsys, 'plan check plan.json')[1].startswith('plan.json: runs on 2 ranks with hidden128_head4\n')
    assert rc==0 and re.search(r'budget 1.00 GiB: stage 0 is \d.\d\d GiB over', out) and as_json(capsys, 'plan check small.json --json')['fits'] is False
    d['galvatron']['search'].pop('analytic'); d['galvatron'] |= dict(analytic=False, predicted_peak_mib=[900.]*plan.pp_deg) # no profile is here: the record answers
    Path('there.json').write_text(json.dumps(d))
    assert 'stage 1 0.88 GiB; budget 1.00 GiB: it fits (as the search recorded)' in run(capsys, 'plan check there.json')[1]
    shown = as_json(capsys, 'show there.json --json')
    assert shown['plans'][0]['predicted_ms']==d['galvatron']['predicted_ms'] and shown['notes'][0].startswith('Time and peaks are those that the search recorded') and 'No prices' not in shown['notes'][0]

def test_defaults_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = 'search --model_type llama_hf --model_size llama-7b --num_hidden_layers 4 --num_gpus_per_node 2 --settle_bsz 8'
    out = run(capsys, line)[1]
    assert 'memory budget: 24 GiB is the default (--memory_constraint); the device (' in out and 'came with Galvatron and were not measured here' in out and 'layers on' in out
    out = run(capsys, f'{line} --memory_constraint 30 --analytic h200')[1]
    assert 'is the default' not in out and 'came with Galvatron' not in out

def test_the_search_does_not_say_one_thing_twice(searched):
    "Plans beside the one found are told apart, or told once"
    against = [l for l in searched[1].partition('Against:\n')[2].splitlines() if ' ms with ' in l]
    plans = [re.search(r' ms with (.*?)(; | \(outside)', l)[1] for l in against]
    assert against and len(set(plans))==len(plans)==len(set(re.search(r'([\d.]+) ms with', l)[1] for l in against)), against

def test_starts_fast():
    "Seconds of the processor: a busy machine does not count"
    used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    before,r = used(),subprocess.run([sys.executable, '-m', 'galvatron', '--help'], capture_output=True, text=True)
    assert r.returncode==0 and used()-before<1

def test_init_copies_everything_or_nothing(tmp_path, capsys, monkeypatch):
    real = shutil.copytree
    def full(src, to, *a, **k):
        if Path(src).name=='profile_hardware': raise OSError(28, 'No space left on device')
        return real(src, to, *a, **k)
    monkeypatch.setattr(cli.shutil, 'copytree', full)
    assert run(capsys, ['init', str(tmp_path/'work')])==(2, '', f"galvatron: error: init: cannot write to {tmp_path/'work'}: No space left on device\n")
    assert not list((tmp_path/'work').iterdir())

def test_closed_pipe():
    r = subprocess.run(f'{sys.executable} -m galvatron --help | head -1', shell=True, capture_output=True, text=True)
    assert r.stderr=='' and r.stdout.startswith('Measure')

def as_json(capsys, line):
    "What a command prints for programs: one value of JSON with the keys that its help names, and nothing else"
    rc,out,err = run(capsys, line)
    assert rc==0, err
    found = json.loads(out, parse_constant=lambda c: pytest.fail(f'{c} is not JSON'))
    has_shape(cli.find(shlex.split(line))[0], found)
    return found

def has_shape(name, found):
    keys = cli.JSON[name]
    for one in found if keys.startswith('[') else [found]: assert list(one)==keys.strip('[]').split(), name

def test_every_command_can_print_json(capsys):
    assert cli.JSON.keys()==cli.COMMANDS.keys()
    for name in cli.COMMANDS:
        parser = cli.parser_of(name)
        assert '--json' in parser._option_string_actions and f'--json prints: {cli.JSON[name]}' in parser.format_help(), name

def test_json(tmp_path, capsys, monkeypatch):
    "What a command prints for programs"
    monkeypatch.chdir(tmp_path)
    model = '--model_type llama_hf --model_size llama-7b --num_hidden_layers 4'
    cluster = '--num_gpus_per_node 8 --memory_constraint 36 --settle_bsz 64 --analytic h200'
    found = as_json(capsys, f'search {model} {cluster} --json')
    plan = Plan.load(found['file'], 8)
    assert {k:v for k,v in plan.to_dict().items() if k!='galvatron'}==found['plan'] and found['fits'] and len(found['stages'])==plan.pp_deg
    assert abs(sum(found['stages'][0]['memory_mib'].values())/found['stages'][0]['peak_mib']-1)<1e-9
    priced = as_json(capsys, f"explain {found['file']} {model} {cluster} --json")
    assert abs(priced['predicted_ms']/found['predicted_ms']-1)<1e-9
    assert as_json(capsys, f"plan check {found['file']} --world_size 8 --json")['plan']==plan.to_dict()
    assert as_json(capsys, f"plan show {found['file']} --json")['ranks']==8
    shown = as_json(capsys, f"show {found['file']} {model} {cluster.partition(' --settle')[0]} --analytic h200 --html p.html --json")
    assert abs(shown['plans'][0]['predicted_ms']/found['predicted_ms']-1)<1e-9 and shown['plans'][0]['stages'][0]['memory_mib'] and shown['notes']==[] and (tmp_path/'p.html').exists()
    Plan.uniform(4, 8).save('bare.json')
    bare = as_json(capsys, 'show bare.json --world_size 8 --json')
    assert bare['plans'][0]['predicted_ms'] is None and 'No prices' in bare['notes'][0] and bare['page'] is None
    assert run(capsys, 'show bare.json --world_size 8')[1].strip().endswith(bare['notes'][0]) # people are told as well
    assert as_json(capsys, 'completion bash --json')['shell']=='bash' and as_json(capsys, 'init zoo --json')['folders']
    assert as_json(capsys, f'profile-model {model} --analytic h200 --output_dir p --json')['points']>0
    assert as_json(capsys, 'profile-hardware --num_gpus_per_node 8 --analytic h200 --output_dir h --json')['tables'][0]['bytes']
    (tmp_path/'t.jsonl').write_text('{"text": "hello"}\n'*3)
    assert as_json(capsys, 'preprocess-data --input t.jsonl --output-prefix t --json')['documents']==3
    assert as_json(capsys, 'data show t_text_document --json')['tokens']==15
    assert as_json(capsys, 'data merge --input t_text_document t_text_document --output-prefix two --json')['documents']==6
    small = '--hidden_size 32 --num_attention_heads 2 --num_hidden_layers 2 --seq_length 16 --vocab_size 64 --mixed_precision fp32'
    assert cli.main(shlex.split(f'train --nproc 1 {small} --mock_data --train_iters 2 --eval_iters 0 --global_train_batch_size 2 --save ck --json'))==0
    out,err = capsys.readouterr()
    has_shape('train', last := json.loads(out))
    assert last['step']==2 and last['samples_per_s']>0 and Path(last['metrics']).exists() and last['checkpoints']=='ck' and 'saved to ck' in err # what people read
    assert as_json(capsys, 'checkpoint show ck --json')[0]['iteration']==as_json(capsys, 'checkpoint verify ck --json')[0]['iteration']==2
    assert Path(as_json(capsys, 'convert g2h ck hf --json')['folder']).name=='hf' and as_json(capsys, 'convert h2g hf back --json')['folder'].startswith('back')

def test_model_type_names_every_family():
    from galvatron.model_spec import model_types
    help_ = next(a.help for a in cli.parser_of('search')._actions if a.dest=='model_type')
    assert [t for t in model_types if (t if t.endswith('_hf') else t.removesuffix('_fa')) not in help_]==[]

def test_doctor(capsys, monkeypatch):
    found = as_json(capsys, 'doctor --min_disk_gib 0 --json')
    assert {'Python','PyTorch','CUDA','NCCL','flash-attn','disk','rendezvous (gloo)'}<={f['what'] for f in found}
    from galvatron import doctor
    monkeypatch.setattr(doctor, 'rendezvous_finding', lambda *_: doctor.Finding('rendezvous', 'ok', '')) # tried above
    rc,out,_ = run(capsys, 'doctor --min_disk_gib 1e9')
    assert rc==1 and 'to put right: disk' in out and '--dir' in out
    rc,out,err = run(capsys, 'doctor --num_nodes 2 --min_disk_gib 0')
    assert rc==2 and '--master_port' in err
    for k,v in dict(NUM_NODES='2', NODE_RANK='1', MASTER_ADDR='localhost', MASTER_PORT='29500').items(): monkeypatch.setenv(k, v) # as train reads them
    rc,out,_ = run(capsys, 'doctor --min_disk_gib 0')
    assert rc==1 and 'localhost is 127.0.0.1, this node itself' in out

@pytest.mark.skipif(not shutil.which('zsh'), reason='no zsh here')
def test_completion_zsh(tmp_path):
    from galvatron.reference import completion
    (tmp_path/'_galvatron').write_text(completion('zsh'))
    ask = f"""autoload -U compinit; compinit -u -d {tmp_path}/dump; source {tmp_path}/_galvatron; _describe() {{ print -l $rows }}; _files() {{ print files }}
    words=(galvatron search --sp_space ''); CURRENT=4; _galvatron; words=(galvatron plan ''); CURRENT=3; _galvatron"""
    out = subprocess.run(['zsh', '-fc', ask], capture_output=True, text=True).stdout.split('\n')
    assert out[:3]==['tp','tp+sp','sp'] and out[3].startswith('check:'), out

@pytest.mark.skipif(not shutil.which('fish'), reason='no fish here')
def test_completion_fish(tmp_path):
    from galvatron.reference import completion
    (tmp_path/'g.fish').write_text(completion('fish'))
    ask = lambda line: subprocess.run(['fish', '-c', f"source {tmp_path}/g.fish; complete -C '{line}'"], capture_output=True, text=True, env=os.environ|{'HOME':str(tmp_path)}).stdout
    assert ask('galvatron se').startswith('search\t') and ask('galvatron plan ch').startswith('check\t')
    assert {'tp','tp+sp','sp'}<={l.split()[0] for l in ask('galvatron search --sp_space ').splitlines()}
    assert '--disable_vtp\t' in ask('galvatron search --disable_v')
