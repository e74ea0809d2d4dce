"Training on several processes: it learns, resumes to the bit, logs what it should, keeps its memory, and fails well"
import json, math, os, re, signal, subprocess, sys, tempfile, time

import numpy as np
import pytest

from galvatron.plan import GalvatronError
from galvatron.runtime.launch import RankError, run_ranks

SEQ, VOCAB = 16, 40

class Counting:
    "Samples that count upwards from a random start"
    def __init__(self, n, seed=0): self.n, self.seed = n, seed
    def __len__(self): return self.n
    def __getitem__(self, i):
        text = (np.random.default_rng([self.seed, i]).integers(VOCAB) + np.arange(SEQ+1))%VOCAB
        return dict(tokens=text[:-1], labels=text[1:])

def setup(text, options='fp32', chunks=2, pipeline_type='pipedream_flush', layers=4, **kw):
    from galvatron.model_spec import ModelSpec
    from galvatron.plan import Plan, RunOptions, VocabStrategy
    spec = ModelSpec.from_size('llama_hf', layers=layers, seq=SEQ, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, vocab_size=VOCAB)
    return spec, Plan.from_text(text, global_bsz=8, chunks=chunks, pipeline_type=pipeline_type, vocab=VocabStrategy(**kw)), RunOptions(options)

def go(text, args, n=4000, valid=True, setup_kw=None):
    "Train on this rank: last record and the whole loss curve"
    from galvatron.runtime.train import TrainArgs, Trainer
    spec, plan, options = setup(text, **(setup_kw or {}))
    t = Trainer(spec, plan, TrainArgs(**dict(lr=1e-2, eval_iters=4, tensorboard=False) | args), options)
    last = t.fit(Counting(n), Counting(64, 1) if valid else None)
    return last, {r['step']:r['loss'] for r in t.history}

def records(folder): return [json.loads(l) for l in open(f'{folder}/metrics.jsonl')]

def learns_and_resumes(folder):
    "One launch, several runs: two stages; data parallel with tensor parallel; resumed under the same and under another plan"
    two, tp = '2-1-1 x2 || 2-1-1 x2', '1-2*-1, 1-1-2f x3'
    base = dict(train_iters=30, lr_decay_style='cosine', lr_warmup_iters=3, log_interval=10)
    out = dict(two=go(two, dict(base, log_dir=f'{folder}/two', eval_interval=15)), tp=go(tp, dict(base, log_dir=f'{folder}/tp'), setup_kw=dict(width=2)))
    for name,plan in dict(same=two, other=tp).items():
        d = f'{folder}/ck_{name}'
        out[f'{name}_half'] = go(two, dict(base, save=d, save_interval=5, exit_interval=12), valid=False)
        out[name] = go(plan, dict(base, save=d, load=d), valid=False, setup_kw=dict(width=2) if name=='other' else None)
    return out

@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    d = tmp_path_factory.mktemp('runs')
    return d, run_ranks(learns_and_resumes, 2, str(d), timeout=240)

def test_learns(runs):
    _, ranks = runs
    for name in ('two', 'tp'):
        last, losses = ranks[0][name]
        assert losses[1]>3.3 and losses[30]<1. and last['perplexity']<math.exp(1.2)
        assert ranks[1][name][1]==losses # every rank reports the global loss
    a, b = ranks[0]['two'][1], ranks[0]['tp'][1]
    assert all(abs(a[i]-b[i])<2e-3*a[i] for i in range(1, 11)) # another plan, the same training

def test_resume_is_exact(runs):
    d, ranks = runs
    whole, half, same, other = (ranks[0][k][1] for k in ('two', 'same_half', 'same', 'other'))
    assert list(half)==list(range(1, 13)) and list(same)==list(range(13, 31))
    assert all(half[i]==whole[i] for i in half) and all(same[i]==whole[i] for i in same)
    assert all(abs(other[i]-whole[i])<5e-3*whole[i]+1e-3 for i in other)
    assert [r['step'] for r in records(d/'ck_same') if 'loss' in r]==list(range(1, 31))

def test_metrics(runs):
    d, _ = runs
    rows = records(d/'two')
    steps, evals = [r for r in rows if 'loss' in r], [r for r in rows if 'eval_loss' in r]
    assert [r['step'] for r in steps]==list(range(1, 31)) and [r['step'] for r in evals]==[15, 30]
    assert all(r['perplexity']==pytest.approx(math.exp(r['eval_loss'])) for r in evals)
    r = steps[-1]
    assert {'loss', 'grad_norm', 'lr', 'ms', 'tokens_per_s', 'tflops', 'flop_convention', 'allocated_mib', 'reserved_mib', 'samples'}<=set(r)
    spec, plan, _ = setup('2-1-1 x2 || 2-1-1 x2')
    assert r['samples']==240 and r['tokens_per_s']==pytest.approx(8*SEQ/r['ms']*1e3) and r['tflops']==pytest.approx(spec.step_flops(8)/2/r['ms']/1e9)
    assert steps[2]['lr']==pytest.approx(1e-2) and steps[-1]['lr']<1e-4
    assert len(steps[9]['measured_mib'])==2 and steps[9]['measured_ms']>0
    end, = [r for r in rows if 'steady_steps' in r]
    times = sorted(r['ms'] for r in steps[5:])
    assert end['steady_steps']==[6, 30] and end['measured_ms']==pytest.approx(times[12]) and end['range_ms']==[times[2], times[-3]] and len(end['measured_mib'])==2 and rows[-1] is not steps[-1]

def test_tensorboard(tmp_path):
    "Every number of metrics.jsonl under the same step; after a restart also from there on"
    events = pytest.importorskip('tensorboard.backend.event_processing.event_accumulator', reason='tensorboard is not installed')
    base = dict(train_iters=6, log_dir=str(tmp_path), save=str(tmp_path), eval_interval=3, tensorboard=True)
    go('1-1-1 x4', dict(base, exit_interval=3))
    go('1-1-1 x4', dict(base, load=str(tmp_path)))
    read = events.EventAccumulator(str(tmp_path))
    read.Reload()
    shown = {k: {e.step: e.value for e in read.Scalars(k)} for k in read.Tags()['scalars']}
    rows = records(tmp_path)
    for key in 'loss', 'grad_norm', 'lr', 'ms', 'perplexity':
        want = {r['step']: r[key] for r in rows if key in r}
        assert shown[key]==pytest.approx(want, rel=1e-6) and list(want)==([3, 6] if key=='perplexity' else [1, 2, 3, 4, 5, 6]), key

def several():
    "fp16 with loss scaling, a trace, memory over 300 steps, a plan with its prediction"
    import tempfile
    from galvatron.runtime.train import TrainArgs, Trainer
    out = dict(fp16=go('1-1-2 x4', dict(train_iters=20), setup_kw=dict(options='fp16')), bf16=go('1-2*-1 x4', dict(train_iters=20), setup_kw=dict(options='bf16')))
    spec, plan, options = setup('2-1-1 x2 || 2-1-1 x2')
    t = Trainer(spec, plan, TrainArgs(train_iters=300, eval_iters=0, lr=1e-2, clip_grad=0.), options)
    t.fit(Counting(4000))
    out['memory'] = [r['allocated_mib'] for r in t.history]
    with tempfile.TemporaryDirectory() as d:
        go('2-1-1 x2 || 2-1-1 x2', dict(train_iters=8, profile=2, log_dir=d, eval_iters=0))
        out['trace'] = sorted(os.listdir(d)), 'traceEvents' in json.load(open(f"{d}/trace_rank{os.environ['RANK']}.json"))
    return out

def test_precisions_memory_and_traces():
    ranks = run_ranks(several, 2, timeout=240)
    for k in ('fp16', 'bf16'): assert ranks[0][k][1][20]<2.
    for r in ranks:
        m = r['memory']
        assert max(m[-50:])-max(m[20:70])<3, m[::20] # MiB, of some 500
        assert r['trace'][1]
    assert 'trace_rank0.json' in ranks[0]['trace'][0]

def trainer(n=50, **kw):
    from galvatron.runtime.train import TrainArgs, Trainer
    spec, plan, options = setup('2-1-1 x2 || 2-1-1 x2')
    return Trainer(spec, plan, TrainArgs(train_iters=n, lr=1e-2, eval_iters=0, **kw), options)

@pytest.mark.parametrize('how', [' by formula', ''])
def test_a_prediction_by_formula_is_called_so(how, capfd):
    from dataclasses import replace
    from galvatron.runtime.train import TrainArgs, Trainer
    spec, plan, options = setup('1-1-1 x4')
    said = dict(hardware='analytic H200 1x1' if how else 'NVIDIA H200 1x1', predicted_ms=10., predicted_peak_mib=[100.])
    Trainer(spec, replace(plan, provenance=said), TrainArgs(train_iters=2, eval_iters=0), options).fit(Counting(40))
    assert re.search(rf'step time .* ms \(predicted 10\.0{how}, .*%\); peak memory .* \(predicted 100{how}\)', capfd.readouterr().out)

def test_the_end_sums_up_beside_the_prediction(capfd):
    "At step 10 and at the end of a longer run, once in a shorter one; a prediction for other ranks is called so"
    from dataclasses import replace
    from galvatron.runtime.train import TrainArgs, Trainer
    spec, plan, options = setup('1-1-1 x4')
    plan = replace(plan, provenance=dict(world_size=2, predicted_ms=10., predicted_peak_mib=[100.]))
    for n, first in ((12, 6), (4, 3)):
        last = Trainer(spec, plan, TrainArgs(train_iters=n, eval_iters=0), options).fit(Counting(100))
        out = capfd.readouterr().out
        assert out.count('step time')==1+(n>10) and re.search(rf'summary of steps {first} to {n}, of which four in five took [\d.]+ to [\d.]+ ms:\nstep time [\d.,]+ ms \(predicted 10.0 for 2 ranks, ', out), out
        assert f"step time {last['measured_ms']:.1f} ms" in out.splitlines()[-1] and last['predicted_ms']==10

def disk_fails():
    import torch.distributed as dist
    class Broken(Counting):
        def __getitem__(self, i):
            if i>=24 and dist.get_rank()==1: raise OSError('disk on fire')
            return super().__getitem__(i)
    trainer().fit(Broken(4000))

def test_a_failing_rank_names_itself_and_the_step():
    t = time.time()
    with pytest.raises(RankError) as e: run_ranks(disk_fails, 2, timeout=120)
    assert e.value.rank==1 and time.time()-t<60
    out = e.value.output[1]
    assert '[rank 1 of 2, stage 1, step 4] OSError: disk on fire' in out
    assert 'Traceback' not in e.value.output[0] or 'lost the connection' in e.value.output[0]

def refusals():
    "Data and losses that cannot be: every rank gets the same message"
    import torch
    class Long(Counting):
        def __getitem__(self, i): return {k:np.tile(v, 2) for k,v in super().__getitem__(i).items()}
    class Big(Counting):
        def __getitem__(self, i): return {k:v+VOCAB for k,v in super().__getitem__(i).items()}
    class Kinds(Counting):
        def __getitem__(self, i): return super().__getitem__(i) | dict(token_types=np.arange(SEQ))
    out = []
    for data in (Long, Big, Kinds, Counting):
        t = trainer()
        if data is Counting: # weights that are no numbers
            with torch.no_grad():
                for p in t.model.parameters(): p.mul_(math.nan)
        try: t.fit(data(4000))
        except GalvatronError as e: out.append(str(e))
    try: trainer().fit(Counting(4000), Long(64))
    except GalvatronError as e: out.append(str(e))
    with tempfile.TemporaryDirectory() as d: # two nodes that do not share the folder
        if os.environ['RANK']=='0':
            os.mkdir(f'{d}/iter_0000005')
            open(f'{d}/iter_0000005/checkpoint.json', 'w').close()
        try: trainer(load=d, save=d)
        except GalvatronError as e: out.append(str(e))
    return out

def test_data_and_losses_that_cannot_be():
    words = ('the data have samples of 32 tokens, the model is set up for 16', 'vocabulary has 40 entries', 'token_types', 'step 1: the loss is nan',
             'the held-out data have samples of 32 tokens', 'iterations on rank 0: [5], on rank 1: none')
    for ms in run_ranks(refusals, 2, timeout=120): assert len(ms)==6 and all(w in m for w,m in zip(words, ms)), ms

def test_fp16_ends_when_no_loss_scale_helps():
    import torch
    from galvatron.runtime.train import TrainArgs, Trainer
    spec, plan, options = setup('1-1-1 x4', options='fp16')
    t = Trainer(spec, plan, TrainArgs(train_iters=50, eval_iters=0), options)
    with torch.no_grad(): next(t.model.parameters()).fill_(math.nan)
    with pytest.raises(GalvatronError, match='the loss is nan'): t.fit(Counting(4000))
    assert 16<=t.step<20 and t.scaler.scale==1. # from 2^16

def test_the_last_record_is_that_of_the_last_step(tmp_path):
    "Of a run that is told to leave some time after an evaluation"
    class Ends(Counting):
        def __getitem__(self, i):
            if i==96: os.kill(os.getpid(), signal.SIGTERM)
            return super().__getitem__(i)
    spec, plan, options = setup('1-1-1 x4')
    from galvatron.runtime.train import TrainArgs, Trainer
    t = Trainer(spec, plan, TrainArgs(train_iters=100, eval_interval=2, eval_iters=1, save=str(tmp_path), tensorboard=False), options)
    last = t.fit(Ends(4000), Counting(64, 1))
    assert last['stopped']=='SIGTERM' and last['step']==t.step<100 and last['loss']==t.history[-1]['loss'] and last['eval_loss']>0

def overflows(t, at):
    "One number of a gradient becomes infinite in a step; the loss is not touched"
    p = t.model.units[1].module.mlp.up_proj.weight
    def poison(p):
        if t.step==at-1: p.grad[0,0] = math.inf
    p.register_post_accumulate_grad_hook(poison)

def test_a_gradient_that_overflows_is_not_saved(tmp_path, monkeypatch):
    "The run stops before weights that are no numbers become the latest checkpoint, and finishes the one that a slow disk is still writing; so a restart goes on"
    from galvatron.checkpoint import distributed as checkpoint
    from galvatron.runtime.train import TrainArgs, Trainer
    slow = checkpoint.PieceWriter.write_data
    monkeypatch.setattr(checkpoint.PieceWriter, 'write_data', lambda *args: (time.sleep(1), slow(*args))[1])
    spec, plan, options = setup('1-1-1 x4')
    args = dict(train_iters=6, save=str(tmp_path/'ck'), load=str(tmp_path/'x'/'..'/'ck'), save_interval=3, keep_last=1, eval_iters=0, tensorboard=False)
    t = Trainer(spec, plan, TrainArgs(**args, async_save=True), options) # --load names the folder in another way
    overflows(t, 4)
    with pytest.raises(GalvatronError, match='step 4: the gradient norm is (inf|nan)'): t.fit(Counting(4000))
    assert list(checkpoint.iterations(tmp_path/'ck'))==[3]
    assert [r['grad_norm'] is None for r in records(tmp_path/'ck') if 'loss' in r]==[False]*3+[True]
    monkeypatch.undo()
    assert math.isfinite(Trainer(spec, plan, TrainArgs(**args), options).fit(Counting(4000))['loss'])

def test_what_comes_after_the_end(tmp_path, capsys):
    "A save after `fit`; a run that is over, once more; a save without a folder"
    from galvatron.runtime.train import TrainArgs, Trainer
    spec, plan, options = setup('1-1-1 x4')
    args = dict(train_iters=2, save=str(tmp_path), eval_iters=0, tensorboard=False)
    t = Trainer(spec, plan, TrainArgs(**args), options)
    t.fit(Counting(64))
    t.save()
    assert 'nothing left' not in capsys.readouterr().out
    assert Trainer(spec, plan, TrainArgs(**args, load=str(tmp_path)), options).fit(Counting(64))=={}
    assert 'step 2 of 2: there is nothing left to train' in capsys.readouterr().out
    with pytest.raises(GalvatronError, match='no folder for checkpoints'): Trainer(spec, plan, TrainArgs(), options).save()

def test_a_run_says_why_it_leaves_and_what_its_schedule_does(tmp_path, capsys):
    "The last step is on the console, whatever the interval; steps that are recorded, and where; a warm-up that is longer than the run"
    from galvatron.runtime.train import TrainArgs, Trainer
    spec, plan, options = setup('1-1-1 x4')
    args = TrainArgs(train_iters=20, exit_interval=3, lr_warmup_iters=30, profile=1, log_dir=str(tmp_path), eval_iters=1, tensorboard=False)
    last, out = Trainer(spec, plan, args, options).fit(Counting(4000), Counting(64, 1)), capsys.readouterr().out
    assert last['stopped']=='exit_interval' and last['step']==3 and last['eval_loss']>0
    assert 'step 3: exit_interval, leaving\n' in out and re.search(r'^ +3 ', out, re.M) and f'steps 6 to 6 will be recorded in {tmp_path}, trace_rank*.json' in out
    assert 'the rate reaches 6.67e-05 of 0.0001: the run has 20 steps, its warm-up 30' in out

def test_labels_that_do_not_count(capsys):
    "A loss of 0 without any label is told from a perfect one, once; such batches have no weight in an evaluation"
    from galvatron.runtime.train import TrainArgs, Trainer
    class Silent(Counting):
        def __getitem__(self, i): return super().__getitem__(i) | (dict(labels=np.full(SEQ, -100)) if i<16 else {})
    spec, plan, options = setup('1-1-1 x4')
    t = Trainer(spec, plan, TrainArgs(train_iters=3, eval_iters=4, lr=1e-9), options)
    last, out = t.fit(Silent(4000), Silent(32)), capsys.readouterr().out
    assert [r['loss']>3 for r in t.history]==[False, False, True] and out.count('step 1: no label of this batch counts')==out.count('no label')==1
    assert last['eval_loss']==pytest.approx(t.evaluate([Silent(32)[i] for i in range(16, 32)]), rel=1e-6) and last['eval_loss']>3
    assert math.isnan(t.evaluate(Silent(16)))

def test_a_full_disk_leaves_the_metrics(tmp_path, monkeypatch):
    from pathlib import Path
    from galvatron.runtime.train import Log
    (tmp_path/'metrics.jsonl').write_text('{"step": 1}\n{"step": 2}\n')
    def full(self, text): raise OSError(28, 'No space left on device')
    monkeypatch.setattr(Path, 'write_text', full)
    with pytest.raises(OSError): Log(0, tmp_path, 1, start=1, tensorboard=False)
    assert [r['step'] for r in records(tmp_path)]==[1, 2]

def test_a_disk_that_fills_up_ends_the_records_alone(tmp_path, capsys):
    from galvatron.runtime.train import Log
    class Full:
        def write(self, text=''): raise OSError(28, 'No space left on device')
        close = write # what is left in the buffer
    log = Log(0, tmp_path, 1, tensorboard=False)
    log.file.close()
    log.file = Full()
    for step in 1, 2: log.write(dict(step=step, loss=1.))
    out = capsys.readouterr().out
    assert out.count('no more steps are recorded there (No space left on device)')==1 and out.count('1.0000')==2

@pytest.mark.parametrize('key', ['tokens', 'labels'])
def test_an_id_that_the_model_does_not_have(key):
    "Found where it is read, though it stands in the last sample and the vocabulary is padded beyond it"
    from galvatron.runtime.train import TrainArgs, Trainer
    class Far(Counting):
        def __getitem__(self, i):
            res = {k:v.copy() for k,v in super().__getitem__(i).items()}
            if i==15: res[key][3] = VOCAB
            return res
    spec, plan, options = setup('1-1-1 x4')
    t = Trainer(spec, plan, TrainArgs(train_iters=2, eval_iters=0), options)
    assert t.model.padded>VOCAB
    with pytest.raises(GalvatronError, match=f'sample 15 of the data: {key} have id {VOCAB} at position 3'): t.fit(Far(16))
    assert t.step==1

def test_exit_duration_counts_from_the_beginning():
    "An hour of loading is a part of the run's time; a second `fit` has its own"
    from galvatron.runtime.train import TrainArgs, Trainer
    spec, plan, options = setup('1-1-1 x4')
    t = Trainer(spec, plan, TrainArgs(train_iters=6, eval_iters=0, exit_duration=30), options)
    t.began -= 3600
    assert t.fit(Counting(64))['stopped']=='exit_duration' and t.step==1
    assert 'stopped' not in t.fit(Counting(64)) and t.step==6

@pytest.mark.parametrize('data,words', [(iter([]), 'the data are a list_iterator: want something with a length'), ([dict(tokens=np.arange(SEQ), labels=np.arange(SEQ//2))], 'samples of 8 labels, the model is set up for 16')])
def test_data_of_another_form(data, words):
    from galvatron.runtime.train import TrainArgs, Trainer
    spec, plan, options = setup('1-1-1 x4')
    with pytest.raises(GalvatronError, match=words): Trainer(spec, plan, TrainArgs(train_iters=2), options).fit(data)

def test_data_without_a_sample():
    for data in (Counting(0), None), (Counting(16), Counting(0)):
        from galvatron.runtime.train import TrainArgs, Trainer
        with pytest.raises(GalvatronError, match='have no sample'): Trainer(*setup('1-1-1 x4')[:2], TrainArgs(train_iters=2), setup('1-1-1 x4')[2]).fit(*data)

@pytest.mark.parametrize('flash,compile,kernel', [(True, False, 'flash (CPU)'), (False, False, 'math'), (False, True, 'the first of these kernels that takes its shapes: efficient, math')])
def test_the_log_names_the_kernel_that_runs(flash, compile, kernel, capsys, monkeypatch):
    import functools, torch
    from galvatron.plan import RunOptions
    from galvatron.runtime.train import TrainArgs, Trainer
    monkeypatch.setattr(torch, 'compile', functools.partial(torch.compile, backend='aot_eager'))
    spec, plan, _ = setup('1-1-1 x2, 1-1-1-c x2')
    Trainer(spec, plan, TrainArgs(train_iters=2, eval_iters=0), RunOptions('fp32', flash_attn=flash, compile=compile)).fit(Counting(64))
    assert capsys.readouterr().out.count(f'attention runs in {kernel}\n')==1

def test_the_log_names_layers_that_are_not_compiled(capsys, monkeypatch):
    from galvatron.plan import RunOptions
    from galvatron.runtime import parallelise
    from galvatron.runtime.train import TrainArgs, Trainer
    spec, plan, _ = setup('1-1-1 x4')
    first, compiled = [], parallelise.compile_forward
    def all_but_one(layer, *how): first.append(layer) if not first else compiled(layer, *how)
    monkeypatch.setattr(parallelise, 'compile_forward', all_but_one)
    t = Trainer(spec, plan, TrainArgs(train_iters=1), RunOptions('fp32', compile=True))
    t._start(Counting(64), Counting(64)[0])
    assert 'plain tensor parallelism: layers.0 (' in capsys.readouterr().out

@pytest.mark.cuda
@pytest.mark.parametrize('flash', [True, False])
def test_the_kernel_that_runs_on_a_gpu(flash, capsys):
    "One of those that are allowed, the same as PyTorch says it would choose"
    import torch
    from galvatron.plan import Plan, RunOptions, LayerStrategy
    from galvatron.runtime.parallelise import attention_kernels
    from galvatron.runtime.train import TrainArgs, Trainer
    from galvatron.model_spec import ModelSpec
    spec = ModelSpec.from_size('llama_hf', layers=2, seq=SEQ, hidden_size=256, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, vocab_size=VOCAB)
    Trainer(spec, Plan((LayerStrategy(),)*2, global_bsz=8, chunks=2), TrainArgs(train_iters=3, eval_iters=0), RunOptions('bf16', flash_attn=flash)).fit(Counting(64))
    q = torch.empty(4, SEQ, 4, 64, device='cuda', dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
    k = torch.empty(4, SEQ, 2, 64, device='cuda', dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
    with attention_kernels(flash): chosen = torch._fused_sdp_choice(q, k, k, None, 0., True, enable_gqa=True)
    said = capsys.readouterr().out.split('attention runs in ')[1].splitlines()[0]
    assert said in ('cudnn', 'flash', 'efficient', 'math') and said==['math', 'flash', 'efficient', 'cudnn'][chosen]

def test_steps_of_one_s_own_loop():
    "The rate falls over train_iters, or not at all; an initial deviation that a family does not know is refused, and the caller's config is left alone"
    import torch
    from equal import micro_batches, spec_of
    from galvatron.plan import LayerStrategy, Plan, RunOptions
    from galvatron.runtime.train import TrainArgs, Trainer
    spec, plan, options = setup('1-1-1 x4')
    config = spec.hf_config()
    before = config.initializer_range
    for length,want in (dict(train_iters=4), [1., .75, .5, .25]), (dict(train_samples=33), [1., .75, .5, .25]), ({}, [1.]*4):
        t, rates = Trainer(config, plan, TrainArgs(**length, lr=1., init_method_std=.5), options, seq=SEQ), []
        x = torch.arange((SEQ+1)*8).view(8, -1)%VOCAB
        for _ in want:
            t.train_step(micro_batches(t.model, dict(tokens=x[:,:-1], labels=x[:,1:])))
            rates.append(t.optimizer.param_groups[0]['lr'])
        assert rates==want
    assert config.initializer_range==before
    with pytest.raises(GalvatronError, match='lr_warmup_fraction: a share of how many steps'): Trainer(spec, plan, TrainArgs(lr_warmup_fraction=.1), options).train_step([])
    with pytest.raises(GalvatronError, match='init_method_std: a t5 model'): Trainer(spec_of('t5', 2), Plan((LayerStrategy(),)*2), TrainArgs(init_method_std=.1), RunOptions('fp32'))

@pytest.mark.parametrize('kw,words', [
    (dict(lr=0.), 'lr: 0.0'), (dict(clip_grad=-1.), 'clip_grad'), (dict(train_iters=0), 'train_iters: 0'), (dict(lr_decay_style='step'), 'cosine'),
    (dict(lr_warmup_iters=3, lr_warmup_fraction=.1), 'lr_warmup_fraction'), (dict(weight_decay=.1, adam_weight_decay=.2), 'two names'), (dict(min_lr=1.), 'min_lr'), (dict(save_interval=0), 'save_interval'),
    (dict(train_iters=3, epochs=2), 'one of'), (dict(lr_decay_style='WSD'), 'lr_wsd_decay_iters'), (dict(adam_beta1=1.), 'less than 1'), (dict(lr_warmup_fraction=2.), '0 to 1'),
    (dict(check_loss=2), 'check_loss: 2 is not allowed (allowed: 0 or 1)'), (dict(start_weight_decay=0., end_weight_decay=.1), 'weight_decay_incr_style'), (dict(weight_decay_incr_style='step'), 'constant, linear, cosine')])
def test_bad_arguments(kw, words):
    from galvatron.runtime.arguments import TrainArgs
    with pytest.raises(GalvatronError, match=re.escape(words)): TrainArgs(**kw)

def test_a_variable_that_is_no_number(monkeypatch):
    from galvatron.runtime.launch import LaunchArgs
    monkeypatch.setenv('NUM_NODES', 'two')
    with pytest.raises(GalvatronError, match='NUM_NODES=two'): LaunchArgs()

def test_plan_is_checked_before_anything_starts():
    from galvatron.runtime.train import Trainer
    spec, plan, options = setup('2-1-1 x2 || 2-1-1 x2')
    with pytest.raises(GalvatronError, match='pp_deg'): Trainer(spec, plan, options=options)

MODEL = '--model_type llama_hf --hidden_size 32 --num_attention_heads 4 --num_hidden_layers 4 --seq_length 32 --vocab_size 257 --mixed_precision fp32 --global_train_batch_size 8'.split()

def command(*words, timeout=240):
    return subprocess.run([sys.executable, '-m', 'galvatron', 'train', *MODEL, *map(str, words)], capture_output=True, text=True, timeout=timeout)

@pytest.fixture(scope='module')
def text(tmp_path_factory):
    from galvatron.data.preprocess import write_pydoc_topics
    d = tmp_path_factory.mktemp('text')
    write_pydoc_topics(d/'topics')
    return d/'topics'

def test_the_command(text, tmp_path):
    "Two stages, then resumed from a script's point of view with the same words but another plan"
    run = ['--nproc', 2, '--data-path', text, '--split', '95,5,0', '--lr', '3e-3', '--eval-iters', 2, '--eval_interval', 10, '--save', tmp_path/'out', '--load', tmp_path/'out', '--log-interval', 5, '--no_tensorboard']
    r = command(*run, '--pp_deg', 2, '--chunks', 2, '--train_iters', 20, '--exit-interval', 10)
    assert r.returncode==0, r.stderr
    assert 'no checkpoint yet, starting anew' in r.stdout and 'held-out loss' in r.stdout and r.stderr==''
    r = command(*run, '--global_tp_deg', 2, '--train_iters', 20)
    assert r.returncode==0 and 'continuing after step 10; it was saved under another plan' in r.stdout, r.stderr
    losses = [x['loss'] for x in records(tmp_path/'out') if 'loss' in x]
    assert len(losses)==20 and losses[-1]<4.5<losses[0]

def test_a_run_without_held_out_data_says_so(text, capsys):
    from galvatron.data.gpt import DataArgs
    from galvatron.model_spec import ModelSpec
    from galvatron.runtime.train import TrainArgs, train
    spec, (_, plan, options) = ModelSpec.from_size('llama_hf', layers=4, seq=SEQ, hidden_size=32, num_attention_heads=4, vocab_size=257), setup('1-1-1 x4')
    for split,wanted,said in ('100,0,0', 1, 1), ('90,10,0', 1, 0), ('100,0,0', 0, 0):
        train(spec, plan, options, TrainArgs(train_iters=1, eval_iters=wanted), DataArgs([str(text)], split))
        assert capsys.readouterr().out.count('no held-out data, so no evaluation')==said, split

def test_held_out_loss_does_not_depend_on_how_many_evaluations_are_planned(text):
    "The same weights on a held-out set of a few samples, which many evaluations once repeated in another order"
    from galvatron.data.gpt import DataArgs
    from galvatron.data.indexed import IndexedDataset
    from galvatron.model_spec import ModelSpec
    from galvatron.runtime.arguments import datasets
    from galvatron.runtime.train import TrainArgs, Trainer
    _, plan, options = setup('1-1-1 x4')
    spec, n = ModelSpec.from_size('llama_hf', layers=4, seq=SEQ, hidden_size=32, num_attention_heads=4, vocab_size=257), len(IndexedDataset(str(text)))
    data = DataArgs([str(text)], f'{n-1},1,0', data_cache_path=str(text.parent/'orders'))
    losses = set()
    for steps,every in (4,4), (4,2), (4000,1):
        args = TrainArgs(train_iters=steps, eval_interval=every, eval_iters=8)
        losses.add(Trainer(spec, plan, args, options).evaluate(datasets(spec, plan, args, data)[1]))
    assert len(losses)==1, losses

@pytest.mark.parametrize('words,rc,message', [
    (['--nproc', 2, '--pp_deg', 3], 2, 'pp_deg: 3'),
    (['--nproc', 2, '--load', '/nowhere'], 2, '/nowhere: no such folder'),
    (['--nproc', 2, '--load', '/usr'], 2, '/usr: no checkpoint here'),
    (['--nproc', 2, '--lr', 'fast'], 2, 'lr'),
    (['--nproc', 2, '--vocab_size', 100], 2, '257 different tokens')])
def test_the_command_s_errors_are_one_line(text, words, rc, message):
    t = time.time()
    r = command('--data-path', text, '--train_iters', 3, *words)
    assert r.returncode==rc and len(r.stderr.strip().splitlines())==1, r.stderr
    assert r.stderr.startswith('galvatron: error: ') and message in r.stderr and time.time()-t<60

@pytest.mark.skipif(not os.path.exists('/dev/nvidia0'), reason='needs a GPU')
def test_no_step_waits_for_the_gpu():
    "Eight steps under torch's own watch for synchronisation, with everything logged"
    import torch
    from galvatron.runtime.train import Late, TrainArgs, Trainer
    spec, plan, options = setup('1-1-1 x4', options='bf16')
    t = Trainer(spec, plan, TrainArgs(train_iters=20, lr=1e-2, eval_iters=0), options)
    t.total = 20
    batches = t.loader(Counting(4000))
    mark = Late(t.device)
    for i in range(12):
        if i==4: torch.cuda.set_sync_debug_mode('error')
        loss, norm = t.train_step(next(batches))
        now = Late(t.device, loss, norm, t.pipeline.valid)
        t._settle()
        t.pending, mark = (t.step, t.samples, 0., None, now, mark), now
    torch.cuda.set_sync_debug_mode('default')
    assert t.last['step']==11 and t.last['ms']>0 and math.isfinite(t.last['loss'])

def test_single_precision_products_are_what_the_profiler_measures(monkeypatch):
    import torch
    from galvatron.runtime import train
    before = torch.get_float32_matmul_precision()
    monkeypatch.setattr(train, 'matmul_precision', lambda allow, device: 'high' if allow else 'highest') # as on a GPU
    try:
        for allow,wanted in ((1, 'high'), (0, 'highest')):
            spec, plan, options = setup('1-1-1 x4')
            train.Trainer(spec, plan, train.TrainArgs(train_iters=1, eval_iters=0, allow_tf32=allow), options)
            assert torch.get_float32_matmul_precision()==wanted
    finally: torch.set_float32_matmul_precision(before)
