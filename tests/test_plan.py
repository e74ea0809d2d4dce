"Strategy files as users break them, and the same plan back after every way out and in"
import itertools, json, os, pickle, random, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import pytest
from galvatron.model_spec import ModelSpec
from galvatron.plan import DP_TYPES, PIPELINE_TYPES, GalvatronError, LayerStrategy, Plan, PlanError, RunOptions, VocabStrategy

GOOD = dict(pp_deg=2, tp_sizes_enc='2,2,4,1', tp_consecutive_flags='1,1,1,1', dp_types_enc='0,0,1,1', use_sp='0,0,0,0', checkpoint='0,0,1,0',
    global_bsz=32, chunks=4, pp_division='2,2', pipeline_type='pipedream_flush', default_dp_type='ddp', vtp=2, vsp=0, embed_sdp=0)

def without(key): return {k:v for k,v in GOOD.items() if k!=key}
def changed(**kw): return GOOD|kw

# name: (content, further arguments, what the message must say)
LLAMA = '--model_type llama_hf --model_size llama-7b --num_hidden_layers 4 --seq_length 1022'.split()
GQA = '--model_type llama_hf --num_hidden_layers 4 --num_attention_heads 24 --num_key_value_heads 6 --hidden_size 384 --intermediate_size 768 --seq_length 64'.split()
BROKEN = {
    'empty':            ('', [], ['not JSON, line 1 column 1']),
    'comma at the end': ('{"pp_deg": 1,}', [], ['not JSON, line 1', 'comma before the closing bracket']),
    'no object':        ('[1, 2]', [], ['holds a list']),
    'key twice':        ('{"pp_deg": 1, "pp_deg": 2}', [], ['pp_deg: stands twice']),
    'unknown key':      (changed(checkpiont='1,1,1,1'), [], ['checkpiont: unknown key', 'did you mean checkpoint?']),
    'missing key':      (without('chunks'), [], ['chunks: missing']),
    'another file':     ('{"format": "galvatron model profile 1", "model": "llama-7b"}', [], ['not a strategy file', 'but format, model']),
    'no layers':        (without('tp_sizes_enc'), [], ['tp_sizes_enc: missing']),
    'short list':       (changed(use_sp='0,0,0'), [], ['use_sp: 3 entries', 'tp_sizes_enc has 4']),
    'long list':        (changed(dp_types_enc='0,0,0,0,1'), [], ['dp_types_enc: 5 entries', 'tp_sizes_enc has 4']),
    'list ends in ,':   (changed(checkpoint='0,0,1,0,'), [], ['checkpoint, layer 4: empty entry', 'ends with a comma']),
    'hole in a list':   (changed(tp_sizes_enc='2,,4,1'), [], ['tp_sizes_enc, layer 1: empty entry']),
    'word in a list':   (changed(tp_sizes_enc='2,two,4,1'), [], ["tp_sizes_enc, layer 1: 'two' is not a whole number"]),
    'number for list':  (changed(tp_sizes_enc=2), [], ['tp_sizes_enc: 2 is not a string of whole numbers']),
    'all layers':       (changed(dp_types_enc='2,2,2,2'), [], ['dp_types_enc, layers 0-3: 2', 'allowed: 0, 1']),
    'long number':      (changed(tp_sizes_enc='2,2,4,'+'1'*5000), [], ['tp_sizes_enc, layer 3: ', 'is not a whole number']),
    'longer number':    ('{"pp_deg": '+'1'*5000+'}', [], ['not JSON that can be read']),
    'deep':             ('['*100_000, [], ['not JSON that can be read']),
    'huge batch':       (changed(global_bsz=10**12+39, chunks=7), [], ['chunks: 7 does not divide global_bsz 1000000000039']),
    'dp flag':          (changed(dp_types_enc='0,0,2,1'), [], ['dp_types_enc, layer 2: 2', 'allowed: 0, 1']),
    'consecutive flag': (changed(tp_consecutive_flags='1,-1,1,1'), [], ['tp_consecutive_flags, layer 1: -1', 'allowed: 0, 1']),
    'strided Ulysses':  (changed(tp_consecutive_flags='0,1,1,1', use_sp='1,0,0,0'), [], ['tp_consecutive_flags, layer 0: 0 with use_sp 1', 'allowed: 1']),
    'width':            (changed(tp_sizes_enc='2,2,3,1'), [], ['tp_sizes_enc, layer 2: 3 does not divide the 4 ranks', 'allowed: 1, 2, 4']),
    'width 0':          (changed(tp_sizes_enc='2,2,0,1'), [], ['tp_sizes_enc, layer 2: 0', 'allowed: 1, 2, 4']),
    'wide':             (changed(tp_sizes_enc='8,8,8,8'), [], ['tp_sizes_enc, layers 0-3: 8', 'allowed: 1, 2, 4']),
    'stages':           (changed(pp_deg=3, pp_division='1,1,2'), [], ['pp_deg: 3 does not divide 8 ranks', 'allowed: 1, 2, 4']),
    'stages 0':         (changed(pp_deg=0), [], ['pp_deg: 0', 'allowed: whole numbers from 1']),
    'many stages':      (changed(pp_deg=8, pp_division='1,1,1,1,0,0,0,0', tp_sizes_enc='1,1,1,1', vtp=1), [], ['pp_deg: 8 stages for 4 layers', 'at most 4']),
    'lost layers':      (changed(pp_division='1,2'), [], ['pp_division: 1,2 adds up to 3', 'has 4', 'allowed: sum 4']),
    'empty stage':      (changed(pp_division='0,4'), [], ['pp_division, stage 0: 0 layers', 'at least 1']),
    'division length':  (changed(pp_division='4'), [], ['pp_division: 1 entries', 'pp_deg is 2']),
    'chunks':           (changed(chunks=5), [], ['chunks: 5 does not divide global_bsz 32', 'allowed: 1, 2, 4, 8, 16, 32']),
    'small batch':      (changed(global_bsz=8), [], ['global_bsz, layer 3: a micro-batch of 2 samples', '4 data-parallel groups', 'a multiple of 16']),
    'batch is text':    (changed(global_bsz='32'), [], ['global_bsz: "32"', 'whole numbers from 1']),
    'schedule':         (changed(pipeline_type='1f1b'), [], ['pipeline_type: "1f1b"', '"gpipe", "pipedream_flush"']),
    'dp type':          (changed(default_dp_type='fsdp'), [], ['default_dp_type: "fsdp"', '"ddp", "zero2", "zero3"']),
    'vocabulary':       (changed(vtp=3), [], ['vtp: 3 does not divide the 4 ranks', 'allowed: 1, 2, 4']),
    'vsp':              (changed(vsp=2), [], ['vsp: 2', 'allowed: 0, 1']),
    'context parallel': (changed(cp_sizes_enc='1,2,1,1'), [], ['cp_sizes_enc, layer 1: 2 is not supported', 'allowed: 1']),
    'experts':          (changed(ep_sizes_enc='4,1,1,1'), [], ['ep_sizes_enc, layer 0: 4 is not supported', 'allowed: 1']),
    'other cluster':    (changed(world_size=16), [], ['world_size: the file is for 16 ranks, not for 8']),
    'two spellings':    (changed(vocab_sdp=1), [], ['vocab_sdp: 1 contradicts embed_sdp: 0']),
    'provenance':       (changed(galvatron='me'), [], ['galvatron: must be an object']),
    'provenance ranks': (changed(galvatron=dict(world_size='a')), [], ['galvatron, world_size: "a"', 'whole numbers from 1']),
    'provenance ms':    (changed(galvatron=dict(predicted_ms=None)), [], ['galvatron, predicted_ms: null', 'allowed: numbers']),
    'provenance peaks': (changed(galvatron=dict(predicted_peak_mib=[1, 'x'])), [], ['galvatron, predicted_peak_mib: [1, "x"]', 'a list of numbers']),
    'provenance names': (changed(galvatron=dict(hardware=5)), [], ['galvatron, hardware: 5', 'allowed: text']),
    'other model':      (GOOD, '--model_type llama_hf --model_size llama-7b'.split(), ['tp_sizes_enc: 4 entries, but llama-7b has 32 layers']),
    'key/value heads':  (changed(tp_sizes_enc='2,2,4,1', chunks=1), GQA, ['tp_sizes_enc, layer 2: tensor width 4 and 6 key/value heads', 'allowed: 1, 2']),
    'Ulysses sequence': (changed(use_sp='0,0,1,0', chunks=1), LLAMA, ['tp_sizes_enc, layer 2: Ulysses width 4 does not divide the sequence of 1022', 'allowed: 1, 2']),
    'Megatron-SP':      (changed(chunks=1), [*LLAMA, '--sequence-parallel'], ['tp_sizes_enc, layer 2: tensor width 4 does not divide the sequence of 1022', 'allowed: 1, 2']),
    'vocab sequence':   (changed(vtp=4, vsp=1, chunks=1), LLAMA, ['vtp: 4 does not divide the sequence of 1022', 'allowed: 1, 2']),
    'Ulysses of BERT':  (changed(use_sp='1,0,0,0'), '--model_type bert_hf --model_size bert-base --num_hidden_layers 4'.split(), ['layer 0: Ulysses width 2 is not available for bert_enc']),
}

def shell(*args):
    "Exit code, stdout, stderr and seconds of the command, as a user runs it"
    start = time.perf_counter()
    r = subprocess.run([sys.executable, '-m', 'galvatron', *map(str, args)], capture_output=True, text=True, timeout=60)
    return r.returncode, r.stdout, r.stderr, time.perf_counter()-start

@pytest.fixture(scope='module')
def answers(tmp_path_factory):
    "What `galvatron plan check` says to each broken file"
    tmp = tmp_path_factory.mktemp('plans')
    shell('--version') # byte-compile once
    def ask(name):
        content,more,_ = BROKEN[name]
        f = tmp/f'{name.replace(" ","_").replace("/","_")}.json'
        f.write_text(content if isinstance(content, str) else json.dumps(content))
        return f,shell('plan', 'check', f, '--world_size', 8, *more)
    with ThreadPoolExecutor(os.cpu_count()) as ex: return dict(zip(BROKEN, ex.map(ask, BROKEN)))

@pytest.mark.parametrize('name', BROKEN)
def test_broken_file(name, answers):
    f,(rc,out,err,_) = answers[name]
    assert rc==2 and out=='' and 'Traceback' not in err
    assert err.startswith(f'galvatron: error: {f}: ')
    assert [w for w in BROKEN[name][2] if w not in err]==[], err

def test_quick_answer(answers):
    times = sorted(t for _,(*_,t) in answers.values())
    assert times[len(times)//2]<2, times

def test_good_file_passes(tmp_path):
    f = tmp_path/'plan.json'
    f.write_text(json.dumps(GOOD))
    rc,out,err,_ = shell('plan', 'check', f, '--world_size', 8, '--model_type', 'llama_hf', '--model_size', 'llama-7b', '--num_hidden_layers', 4)
    assert (rc,err)==(0,'') and 'runs on 8 ranks with llama-7b' in out

def test_a_file_that_cannot_be_read_tells_what_could_not_run(tmp_path, capsys):
    "Where the ranks are given, and where the file names them"
    from galvatron.cli import main
    f = tmp_path/'plan.json'
    for more,said in (['--world_size', '8'], {}), ([], dict(galvatron=dict(world_size=8))):
        f.write_text(json.dumps(changed(dp_types_enc='7,7,7,7', chunks=3, **said)))
        assert main(['plan', 'check', str(f), *more])==2
        err = capsys.readouterr().err
        assert 'dp_types_enc' in err and 'chunks: 3' in err, err

def test_files_get_the_permissions_of_the_umask(tmp_path):
    from galvatron.plan import usual_mode, write_text
    for mask in 0o027, 0o002, 0o022:
        old = os.umask(mask)
        try:
            write_text(tmp_path/'plan.json', '{}')
            (tmp_path/'closed').touch(0o600)
            usual_mode(tmp_path/'closed')
            assert os.umask(mask)==mask # as it was
        finally: os.umask(old)
        assert {f.stat().st_mode&0o777 for f in tmp_path.iterdir()}=={0o666&~mask}

def test_everything_at_once():
    "What cannot be read and what cannot run come in one error"
    with pytest.raises(PlanError) as e: Plan.from_json(changed(pp_deg=3, pp_division='1,1,2', dp_types_enc='0,0,2', vtp='x', typo=1), world_size=8)
    keys = {v.split(':')[0].split(',')[0] for v in e.value.violations}
    assert keys=={'pp_deg','dp_types_enc','vtp','typo'}
    assert pickle.loads(pickle.dumps(e.value)).violations==e.value.violations

def test_no_such_file():
    with pytest.raises(GalvatronError, match='nowhere.json: No such file'): Plan.load('nowhere.json')

# -- files of other times

def test_old_file():
    "Files of the first releases lack five keys; what the command line says holds for two more"
    old = {k:GOOD[k] for k in ('pp_deg','tp_sizes_enc','tp_consecutive_flags','dp_types_enc','global_bsz','chunks')}
    p = Plan.from_json(old, pipeline_type='pipedream_flush', default_dp_type='zero2', embed_sdp=1)
    assert p.vocab==VocabStrategy(1, False, True) and p.pp_division==(2,2) and p.pipeline_type=='pipedream_flush'
    assert [l.dp_type for l in p.layers]==['zero2','zero2','zero3','zero3'] and not any(l.recompute or l.ulysses for l in p.layers)

def test_file_of_3_0():
    new = {k:v for k,v in GOOD.items() if k not in ('global_bsz','embed_sdp')} | dict(global_batch_size=32, vocab_sdp=1, cp_sizes_enc='1,1,1,1',
        ep_sizes_enc='1,1,1,1', tp_of_ep_sizes_enc='1,1,1,1', vcp=1, world_size=8, is_moe_model=0)
    p = Plan.from_json(new, world_size=8)
    assert p.global_bsz==32 and p.vocab.embed_sdp

def test_as_the_user_guide_prints_it():
    text = '''{
    // pipeline
    "pp_deg": 2, "pp_division": "16,16",
    "pipeline_type": "pipedream_flush",  // or "gpipe"
    "chunks": 32, "global_bsz": 256,
    "tp_sizes_enc": "%s", "tp_consecutive_flags": "%s", "dp_types_enc": "%s" // one entry a layer
}''' % tuple(','.join([x]*32) for x in '210')
    p = Plan.from_json(text)
    assert p.strategy_runs()==[(range(32), LayerStrategy(2))] and p.to_json()==text

def test_uneven_layers_are_never_lost():
    p = Plan((LayerStrategy(),)*30, pp_deg=4)
    assert p.pp_division==(7,7,7,9) and sorted(i for s in range(4) for i in p.stage_layers(s))==list(range(30))

def test_byte_order_mark(tmp_path):
    (tmp_path/'p.json').write_text(json.dumps(GOOD), encoding='utf-8-sig')
    p = Plan.load(tmp_path/'p.json')
    assert p.n_layers==4 and p.save(tmp_path/'q.json').read_bytes()==(tmp_path/'p.json').read_bytes()

def test_a_broken_plan_can_still_be_printed():
    assert '3+9' in repr(Plan((LayerStrategy(),)*5, pp_deg=2, pp_division=(3,9)))
    assert repr(Plan((), pp_deg=4)) and repr(Plan((LayerStrategy(),), pp_deg=0))

# -- round trips

def random_plan(rng):
    n,pp = rng.choice([1,2,4,6,8]),rng.choice([1,2,3,4])
    widths,default = [k for k in range(1, n+1) if n%k==0],rng.choice(DP_TYPES)
    layers = tuple(LayerStrategy(rng.choice(widths), rng.random()<.3, rng.random()<.7, rng.choice([default,'zero3']), rng.random()<.5) for _ in range(rng.randint(pp, 12)))
    cuts = sorted(rng.sample(range(1, len(layers)), pp-1))
    division = tuple(b-a for a,b in itertools.pairwise([0, *cuts, len(layers)]))
    chunks = rng.randint(1, 6)
    return n*pp, Plan(layers, VocabStrategy(rng.choice(widths), rng.random()<.3, rng.random()<.5), pp, division, rng.choice(PIPELINE_TYPES),
        chunks, chunks*n*rng.randint(1, 3), default, provenance={'model':'模型', 'predicted_ms':rng.random()} if rng.random()<.5 else {})

@pytest.mark.parametrize('seed', range(200))
def test_round_trips(seed, tmp_path):
    world,p = random_plan(random.Random(seed))
    assert p.violations(world)==[]
    q = Plan.load(p.save(tmp_path/'a.json'), world)
    assert q==p and q.provenance==p.provenance and hash(q)==hash(p)
    assert q.save(tmp_path/'b.json').read_bytes()==(tmp_path/'a.json').read_bytes()
    short = {f:getattr(p, f) for f in ('vocab','pipeline_type','chunks','global_bsz','default_dp_type')}
    same = lambda ls: [(l if l.dp(world//p.pp_deg)>1 else LayerStrategy(l.width, l.ulysses, True, l.dp_type, l.recompute)) for l in ls]
    r = Plan.from_text(p.text(world), **short) # strided groups of a whole stage are neighbours
    assert same(r.layers)==same(p.layers) and r.pp_division==p.pp_division
    assert r.text()==p.text(world) and Plan.load(r.save(tmp_path/'c.json')).text()==p.text(world) # with as many ranks, and nobody has to say how many
    assert str(p) and p.table(world).count('\n')==len(p.strategy_runs(by_stage=True))+2

@pytest.mark.parametrize('text', ['\r\n', '\t', '   // a comment\n', '\n\n'])
def test_bytes_stay(text, tmp_path):
    "A file that was loaded and not changed is saved as it was, whatever its spaces; a changed one is written anew"
    f = tmp_path/'plan.json'
    f.write_bytes((json.dumps(GOOD)+text).encode())
    p = Plan.load(f)
    assert p.save(tmp_path/'again.json').read_bytes()==f.read_bytes()
    p.provenance['note'] = 'mine'
    assert Plan.from_json(p.to_json()).provenance=={'note':'mine'}

def test_fallbacks_are_written(tmp_path):
    "A plan that took its schedule from the command line does not lose it when saved"
    p = Plan.from_json(json.dumps(without('pipeline_type')), pipeline_type='pipedream_flush')
    assert Plan.load(p.save(tmp_path/'p.json')).pipeline_type=='pipedream_flush'

def test_groups_are_partitions():
    "Every rank is in one tensor group and one data-parallel group, which meet in one rank"
    for n in 1,2,4,6,8,12:
        for k in (k for k in range(1, n+1) if n%k==0):
            for consecutive in False,True:
                wide,deep = LayerStrategy(k, consecutive=consecutive).groups(n)
                assert sorted(itertools.chain(*wide))==sorted(itertools.chain(*deep))==list(range(n))
                assert all(len(set(a)&set(b))==1 for a in wide for b in deep)

def test_mixed_default_dp_types_are_refused():
    p = Plan((LayerStrategy(dp_type='ddp'), LayerStrategy(dp_type='zero2')), default_dp_type='zero2')
    assert p.violations(8)==["dp_types_enc, layer 0: 'ddp' is neither zero3 nor default_dp_type (allowed: zero2, zero3)"]
    with pytest.raises(PlanError, match='dp_types_enc, layer 0'): p.to_json()

def test_checks_agree_with_the_model():
    spec = ModelSpec.from_size('llama_hf', 'llama2-70b', layers=2, seq=4096)
    ok = lambda **kw: Plan((LayerStrategy(**kw),)*2, global_bsz=64).violations(64, spec, RunOptions(sequence_parallel=True))==[]
    assert [k for k in (1,2,4,8,16,32,64) if ok(width=k)]==[k for k in (1,2,4,8,16,32,64) if ok(width=k, ulysses=True)]==[1,2,4,8,16,32,64]

@pytest.mark.parametrize('heads,kv,seq,widths', [(28, 4, 4096, [1,2,4]), (40, 8, 4096, [1,2,4,8]), (16, 2, 4096, [1,2,4,8,16]), (12, 2, 4096, [1,2,4]), (40, 8, 1004, [1,2,4])])
def test_widths_that_heads_and_sequence_allow(heads, kv, seq, widths):
    "Of powers of two up to 32; for Ulysses the sequence counts too"
    spec = ModelSpec.from_hf(dict(model_type='llama', vocab_size=512, hidden_size=8*heads, intermediate_size=64*heads, num_hidden_layers=1, num_attention_heads=heads, num_key_value_heads=kv), seq=seq)
    says = lambda w, ulysses: Plan((LayerStrategy(w, ulysses),), global_bsz=64).violations(32, spec, RunOptions())
    assert [w for w in (1,2,4,8,16,32) if not says(w, True)]==widths
    assert all(str(heads) in v or str(kv) in v or str(seq) in v for v in says(32, True)) and f'allowed: {", ".join(map(str, widths))}' in ' '.join(says(32, True))
    if seq==4096: assert [w for w in (1,2,4,8,16,32) if not says(w, False)]==widths

def test_one_stage_of_too_few_layers():
    with pytest.raises(PlanError, match='pp_division: 20 adds up to 20 layers, but tp_sizes_enc has 30'): Plan((LayerStrategy(),)*30, pp_division=(20,)).check(1)

def test_no_torch():
    code = 'import sys, galvatron.plan, galvatron.cli; sys.exit(any(m in sys.modules for m in ("torch","transformers","matplotlib","numpy")))'
    assert subprocess.run([sys.executable, '-c', code]).returncode==0

# -- fields of a wrong type

WHOLE, FROM_1, FLAG, DP = 'whole numbers', 'whole numbers from 1', 'True, False', ', '.join(DP_TYPES)
SIMPLE = {WHOLE: int, FROM_1: int, FLAG: bool, DP: str, ', '.join(PIPELINE_TYPES): str, 'fp32, fp16, bf16, fp64': str}
TYPED = { # of each field what the error says is allowed
    LayerStrategy: dict(width=WHOLE, ulysses=FLAG, consecutive=FLAG, dp_type=DP, recompute=FLAG),
    VocabStrategy: dict(width=WHOLE, ulysses=FLAG, embed_sdp=FLAG),
    Plan: dict(layers='one LayerStrategy for each layer', vocab='a VocabStrategy', pp_deg=FROM_1, pp_division='whole numbers, one for each stage', pipeline_type=', '.join(PIPELINE_TYPES), chunks=FROM_1, global_bsz=FROM_1,
        default_dp_type=DP, provenance='a dictionary'),
    RunOptions: {f.name: 'fp32, fp16, bf16, fp64' if f.type is str else FLAG if f.type is bool else WHOLE for f in fields(RunOptions)}}

@pytest.mark.parametrize('cls', TYPED)
def test_a_field_of_a_wrong_type_is_refused_by_name(cls):
    "Every field and many values, one at a time: one error that names the field, the value and what is allowed"
    assert list(TYPED[cls])==[f.name for f in fields(cls) if f.init]
    structured = dict(layers=[()], pp_division=[(), [1]], provenance=[{'a': 1}])     # values that these fields may have
    for key,allowed in TYPED[cls].items():
        for x in ('fp16', '2', 2.5, float('nan'), None, [1], ['x'], {'a': 1}, (), b'55', object(), True, 1):
            kw = (dict(layers=(LayerStrategy(),)) if cls is Plan else {}) | {key: x}
            if type(x) is SIMPLE.get(allowed) and (key,x)!=('mixed_precision','2') or x in structured.get(key, []): cls(**kw); continue
            with pytest.raises(GalvatronError) as e: cls(**kw)
            shown = tuple(x) if key in ('layers','pp_division') and type(x) is list else x
            if (key,x)!=('mixed_precision','2'): assert str(e.value).endswith(f'{key}: {shown!r} is not allowed (allowed: {allowed})') and '\n' not in str(e.value)

def test_everything_of_a_wrong_type_at_once():
    with pytest.raises(PlanError) as e: Plan('two', None, '1', '11', 3, '2', 8., 0, provenance=[])
    assert [v.split(':')[0] for v in e.value.violations]==['layers', 'vocab', 'pp_division', 'provenance', 'pp_deg', 'pipeline_type', 'chunks', 'global_bsz', 'default_dp_type']

@pytest.mark.parametrize('world', ['8', None, 8., 0, True])
def test_ranks_of_a_wrong_type(world):
    with pytest.raises(PlanError, match='world_size: .* is not allowed'): Plan((LayerStrategy(),)).check(world)
