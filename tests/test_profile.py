"Profiles: what notebooks cannot show. Several gloo processes, ranks that die, memory that runs out, interruptions, and files of every generation"
import errno, json, os, signal, socket, stat, subprocess, sys, tempfile, time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from galvatron.model_spec import ModelSpec
from galvatron.plan import GalvatronError, RunOptions
from galvatron.profile.files import MIB, OPS, HardwareProfile, ModelProfile, documented_text, hardware_files, model_files, write_text
from galvatron.profile import hardware, model
from galvatron.profile.hardware import ProfileHardwareArgs, groups_to_measure, profile_hardware
from galvatron.profile.model import ProfileModelArgs, profile_model
from galvatron.runtime.launch import visible_gpus

SPEC = ModelSpec.from_hf(dict(model_type='llama', vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2), seq=32)
TINY = ProfileModelArgs('all', mixed_precision='fp32', max_tp_deg=2, batches='1,2,4', device='cpu', budget_ms=1.)

def content(folder): return {p.name: p.read_bytes() for p in Path(folder).iterdir() if p.is_file()}
def says(f, *a, **k):
    with pytest.raises(GalvatronError) as e: f(*a, **k)
    assert '\n' not in str(e.value)
    return str(e.value)

# --- files

def test_files_need_no_torch():
    code = "import sys, galvatron.profile.files; print(sorted(m for m in ('torch','transformers') if m in sys.modules))"
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout.strip()=='[]'

HARDWARE = { # as the predecessor shipped them
    'one node': (1, 8, dict(allreduce={'allreduce_size_8_consec_1':160.445, 'allreduce_size_4_consec_1':164.272, 'allreduce_size_4_consec_0':165.493, 'allreduce_size_2_consec_1':155.647, 'allreduce_size_2_consec_0':153.933},
                            p2p={'pp_size_2':147.32, 'pp_size_4':133.469, 'pp_size_8':108.616}, overlap=dict(overlap_coe=1.1534195950157762),
                            sp={f'{o}_size_{n}_{2**i}MB_time': .05+.004*n*2**i for o in ('allreduce','all2all') for n in (8,4,2) for i in range(11)})),
    'no time tables': (2, 8, dict(allreduce={'allreduce_size_16_consec_1':44.682, 'allreduce_size_8_consec_1':155.658, 'allreduce_size_8_consec_0':20.7724}, p2p={'pp_size_2':7.66, 'pp_size_16':8.13})),
}

SHIPPED = Path(model.__file__).parent.parent

def test_shipped_profiles_are_what_reading_and_writing_makes_of_them(tmp_path):
    for kind,folder,pattern in ((HardwareProfile, SHIPPED/'profile_hardware', 'hardware_profile_*'), (ModelProfile, SHIPPED/'model_zoo', 'model_profile_*')):
        found = list(folder.rglob(f'{pattern}.json'))
        assert found
        for f in found: assert all(p.read_bytes()==(f.parent/p.name).read_bytes() for p in kind.load(f).save(tmp_path)), f

@pytest.mark.parametrize('which', HARDWARE)
def test_documented_hardware_files_round_trip(which, tmp_path):
    nodes, gpus, doc = HARDWARE[which]
    for k,v in doc.items(): write_text(tmp_path/hardware_files(nodes, gpus)[k], documented_text(v))
    before, hw = content(tmp_path), HardwareProfile.load(tmp_path)
    hw.save(tmp_path)
    assert content(tmp_path)==before and (hw.num_nodes, hw.gpus_per_node)==(nodes, gpus)
    assert hw.time('all_reduce', 64*MIB, 8)>hw.time('all_gather', 64*MIB, 8)>0 and hw.time('p2p', MIB, 2, nodes*gpus//2)>0
    if 'sp' not in doc: assert "all_to_all_size_8_stride_1" in says(hw.time, 'all_to_all', MIB, 8)
    if 'overlap' not in doc: assert 'overlap_coe' in says(hw.slowdown, 'all_reduce')

def test_the_file_that_clusters_share_is_not_taken_from_another(tmp_path):
    nodes, gpus, doc = HARDWARE['one node']
    for k,v in doc.items(): write_text(tmp_path/hardware_files(nodes, gpus)[k], documented_text(v))
    before, args = content(tmp_path), ProfileHardwareArgs(2, 8, analytic='h200', output_dir=str(tmp_path))
    said = says(profile_hardware, args) # its overlap would stand beside the measured bandwidths of 1 x 8
    assert 'overlap_coefficient.json' in said and 'allreduce_bandwidth_1nodes_8gpus_per_node.json' in said and '--force' in said and content(tmp_path)==before
    assert profile_hardware(replace(args, force=True)).analytic
    HardwareProfile(1, 2, overlap={'all_reduce':(1.5, 2.)}, device='CPU').save(tmp_path/'m')
    before = content(tmp_path/'m') # the same with a rich file: measured, and not to become a formula's
    assert 'hardware_profile_1nodes_2gpus_per_node.json' in says(profile_hardware, replace(args, output_dir=str(tmp_path/'m'))) and content(tmp_path/'m')==before
    for i,kind in enumerate(('p2p','overlap','sp')):
        write_text(tmp_path/f'{i}'/(name := hardware_files(2, 8)[kind]), '{}')
        assert name in says(profile_hardware, replace(args, output_dir=str(tmp_path/f'{i}'))) and len(content(tmp_path/f'{i}'))==1
    for n in (2, 1): HardwareProfile(1, n, overlap={'all_reduce':(1.5, 2.)} if n>1 else {}, device='CPU').save(tmp_path/'b')
    assert HardwareProfile.load(tmp_path/'b', 1, 1).overlap=={} and json.loads((tmp_path/'b'/'overlap_coefficient.json').read_text())==dict(overlap_coe=2.)
    HardwareProfile(1, 2, device='CPU').save(tmp_path/'c'); (tmp_path/'c'/'overlap_coefficient.json').write_text('{}')
    HardwareProfile(1, 2, device='CPU').save(tmp_path/'c') # its own of before goes
    assert not (tmp_path/'c'/'overlap_coefficient.json').exists()

def test_a_missing_key_is_named(tmp_path):
    hw = HardwareProfile.analytic('h100', 2, 4)
    rich = next(p for p in hw.save(tmp_path) if p.name.startswith('hardware_profile'))
    whole = json.loads(rich.read_text())
    for k in set(whole)-{'format'}:
        rich.write_text(json.dumps({a:b for a,b in whole.items() if a!=k}))
        assert repr(k) in says(HardwareProfile.load, tmp_path)
    m = ModelProfile.analytic(SPEC, 'a100')
    rich = next(p for p in m.save(tmp_path/'m') if p.name.startswith('model_profile'))
    whole = json.loads(rich.read_text())
    for k in set(whole)-{'format'}:
        rich.write_text(json.dumps({a:b for a,b in whole.items() if a!=k}))
        assert repr(k) in says(ModelProfile.load, tmp_path/'m', SPEC)
    for fld,ask in dict(forward_ms=lambda m: m.forward_ms(0, 1), working_mib=lambda m: m.working_mib(0, 1), recompute_ms=lambda m: m.recompute_ms(0, 1), backward_ms=lambda m: m.backward_ms(0, 1)).items():
        less = replace(m, points=tuple(replace(p, **{fld:None}) if p.kind=='layer' else p for p in m.points))
        assert fld in says(ask, less)

BAD = None, 'x', -1, {}, float('nan'), [None]

def places(d, at=()):
    "Where something stands in the content of a file; of lists the first two"
    for k,v in d.items() if isinstance(d, dict) else [*enumerate(d)][:2]:
        yield (*at, k)
        if isinstance(v, (dict, list)): yield from places(v, (*at, k))

def changed(d, at, v):
    d = json.loads(json.dumps(d)); x = d
    for k in at[:-1]: x = x[k]
    x[at[-1]] = v
    return d

@pytest.mark.parametrize('kind', ['hardware','model','memory','computation'])
def test_a_file_that_holds_nonsense_is_refused_or_still_tells_finite_numbers(kind):
    from galvatron.cost.pipeline import predict
    from galvatron.plan import LayerStrategy, Plan, VocabStrategy
    hw, m = HardwareProfile.analytic('h200', 1, 2), ModelProfile.analytic(SPEC, 'h200', batches=(1,), widths=(1,2))
    plan = Plan((LayerStrategy(2),)*4, VocabStrategy(1), global_bsz=2)
    content = dict(hardware=hw.to_rich, model=m.to_rich, memory=lambda: m.to_documented()['memory'], computation=lambda: m.to_documented()['computation'])[kind]()
    read = dict(hardware=lambda d: (HardwareProfile.from_rich(d, 'f.json'), m), model=lambda d: (hw, ModelProfile.from_rich(d, 'f.json'))).get(kind, lambda d: (hw, ModelProfile.from_documented({**m.to_documented(), kind:d}, SPEC)))
    if kind=='hardware': content['tables'] = sorted(content['tables'], key=lambda r: r['op'])[:2] + content['tables']
    for at in places(content):
        for v in BAD:
            try: a,b = read(changed(content, at, v)); p = predict(plan, SPEC, a, b); str(a); str(b); a.digest(); b.digest()
            except GalvatronError as e: assert '\n' not in str(e), (at, v)
            else: assert 0<p.iteration_ms<1e9 and 0<p.peak_mib<1e9, (at, v)

MODELS = { # name: (computation, memory) in the shapes of all generations
    'hidden1024_head16_seqlen512': ({'layernum[1]_bsz8_seq512':30., 'layernum[2]_bsz8_seq512':46., 'layertype_0_bsz8_seq512':2., 'layertype_other_bsz8_seq512':1.75},
        {'1_1_8_sp':{'layernum[1]_bsz8_seq512_rank0_ms':1.}, 'layertype_0_sp':{'512':{'parameter_size':48., 'tp_activation_per_bsz_dict':{'1':36.8,'checkpoint':1.25,'2':18.4}}},
         'other_memory_pp_off_sp':{'512':{'model_states':{'1':1181.8,'2':590.9},'activation':{'1':170.7,'2':85.4}}}, 'other_memory_pp_on_first_sp':{'512':{'model_states':{'1':1.},'activation':{'1':1.}}}}),
    'flat': ({'layertype_0':2., 'layertype_other_0':1.75}, {'layertype_0':{'parameter_size':48., 'tp_activation_per_bsz_dict':{'1':36.8,'checkpoint':1.25,'2':20.}}, 'other_memory_pp_off':{'model_states':2615.,'activation':170.7}}),
    'with_batch': ({f'layertype_0_bsz{b}':2. for b in (1,8)} | {'layertype_other_0_bsz8_seq512':1.75}, None),
    'raw_only': ({'layernum[1]_bsz8_seq512':30., 'layernum[2]_bsz8_seq512':46.}, None),
    'version3_all': ({'layernum1_bsz8_seq512':30., 'layernum2_bsz8_seq512':46., 'layertype_0_bsz8_seq512':2., 'layertype_other_bsz8_seq512':1.75}, None),
}

@pytest.mark.parametrize('name', MODELS)
def test_model_files_of_every_generation(name, tmp_path):
    comp, mem = MODELS[name]
    spec = ModelSpec.from_hf(dict(model_type='bert', hidden_size=1024, num_attention_heads=16, intermediate_size=4096, num_hidden_layers=24), seq=512)
    stem = name if name.startswith('hidden') else f'{spec.name}_all' if name.endswith('_all') else spec.name
    for k,d in dict(computation=comp, memory=mem).items():
        if d: write_text(tmp_path/model_files('bf16', stem)[k], documented_text(d))
    before, m = content(tmp_path), ModelProfile.load(tmp_path, spec)
    assert m.forward_ms(0, 8)==pytest.approx(16.) and m.forward_ms(0, 4, 2)==pytest.approx(4.) and m.backward_ms(0, 8)==pytest.approx(32.) and m.head_ms(8)[0]==pytest.approx(14.)
    if mem: assert m.activation_mib(0, 2)==pytest.approx(73.6) and m.activation_mib(0, 1, recompute=True)==1.25 and m.head_peak_mib(1)==pytest.approx(170.7)
    m.save(tmp_path/'again')
    assert sorted(content(tmp_path/'again').values())==sorted(before.values())

def test_a_memory_file_of_a_run_that_was_cut_short_is_refused(tmp_path):
    write_text(tmp_path/model_files('bf16', 'm')['memory'], documented_text({'1_1_8':{'layernum[1]_bsz8_seq512_rank0_ms':1., 'layernum[1]_bsz8_seq512_rank0_act':2.}}))
    said = says(ModelProfile.load, tmp_path, 'm')
    assert 'layertype_0' in said and 'other_memory_pp_off' in said and 'raw keys alone' in said
    write_text(tmp_path/model_files('bf16', 'm')['memory'], '{}')
    assert says(ModelProfile.load, tmp_path, 'm')==said

def test_documented_memory_is_that_of_the_largest_batch():
    m = ModelProfile.analytic(SPEC, 'h200', batches=(1, 4), widths=(1, 2))
    m = replace(m, points=tuple(replace(p, activation_mib=p.batch+100., checkpoint_mib=p.batch+10., peak_mib=p.batch+1000.) for p in m.points)) # 100, 10 and 1000 that do not grow
    d, s = m.to_documented()['memory'], str(SPEC.layer_types[0].seq)
    assert all(d[f'layertype_0{sp}'][s]['tp_activation_per_bsz_dict']=={'1':26., 'checkpoint':3.5, '2':26.} for sp in ('', '_sp'))
    assert all(d[f'other_memory_pp_on_last{sp}'][s]['activation']=={'1':251., '2':251.} for sp in ('', '_sp'))

def test_t5_has_two_types():
    m = ModelProfile.from_documented(dict(computation={'layernum[1,1]_bsz8_seq[512,256]':30., 'layernum[2,1]_bsz8_seq[512,256]':38., 'layernum[1,2]_bsz8_seq[512,256]':46.},
        memory={'other_memory_pp_off_sp':{'[512,256]':{'model_states':{'1':1684.77},'activation':{'1':100.}}}}), 't5')
    assert m.forward_ms(0, 1, seq=512)==pytest.approx(1.) and m.forward_ms(1, 1, seq=256)==pytest.approx(2.) and m.head_peak_mib(1, seq=256)==100.

# --- hardware

@pytest.mark.parametrize('n', [3, 4])
def test_gloo_sweep(n, tmp_path):
    hw = profile_hardware(ProfileHardwareArgs(num_gpus_per_node=n, device='cpu', end_mb=1, scale=13+n, max_call_ms=1e4, output_dir=str(tmp_path), timeout=120)) # however slow the machine is, both sizes; 17 times 64 KiB are more than 1 MiB
    assert set(hw.tables)=={(o,s,d) for s,d in groups_to_measure(n, n) for o in OPS[:4]} | {(o,k,n//k) for k in range(2, n+1) if n%k==0 for o in OPS[4:]}
    assert all(t.bytes==(2**16,2**20) and min(t.ms)>0 for t in hw.tables.values()) and set(hw.overlap)==set(OPS)
    assert all(v>=1 for pair in hw.overlap.values() for v in pair) and all(type(b) is int for row in hw.to_rich()['tables'] for b in row['bytes'])
    before = content(tmp_path)
    HardwareProfile.load(tmp_path).save(tmp_path)
    assert content(tmp_path)==before and len(before)==5
    assert 'sp_time' in str(sorted(before)) and json.loads(before[hardware_files(1, n)['sp']])[f'all2all_size_{n}_1MB_time']>0
    other = tmp_path/hardware_files(1, n)['rich']
    other.write_text(other.read_text().replace('"torch": "', '"torch": "1'))
    assert '--force' in says(profile_hardware, ProfileHardwareArgs(num_gpus_per_node=n, device='cpu', output_dir=str(tmp_path)))

@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize('n', [2, 4])
def test_gloo_completes_with_no_option_but_defaults(n, tmp_path):
    t = time.time()
    r = subprocess.run([sys.executable, '-m', 'galvatron', 'profile-hardware', '--num_gpus_per_node', str(n), '--device', 'cpu', '--output_dir', str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert r.returncode==0, r.stderr
    hw = HardwareProfile.load(tmp_path, 1, n)
    print(f'{n} processes: {time.time()-t:.0f} s, tables up to {sorted({x.bytes[-1]//MIB for x in hw.tables.values()})} MiB')
    assert set(hw.tables)=={(o,s,d) for s,d in groups_to_measure(n, n) for o in OPS[:4]} | {(o,k,n//k) for k in range(2, n+1) if n%k==0 for o in OPS[4:]} and set(hw.overlap)==set(OPS)

def two_nodes(args, progress): # the sweep, with a cable between ranks 0, 1 and 2, 3 that holds each message up
    real = hardware.exchange
    def exchange(ranks, rank, phase, both, nbytes, group, device):
        run, i = real(ranks, rank, phase, both, nbytes, group, device), hardware.link_in(ranks.index(rank), phase, len(ranks))
        if i is None or ranks[i]//2==ranks[i+1]//2: return run
        return lambda: (run(), time.sleep(.05 if both else .03))
    hardware.exchange = exchange
    return hardware.sweep(args, progress)

def test_links_inside_a_node_and_between_nodes_are_told_apart(tmp_path):
    from galvatron.runtime.launch import run_ranks
    a = ProfileHardwareArgs(2, 2, device='cpu', end_mb=1, scale=16, max_call_ms=1e4, overlap_time_multiply=1)
    got = run_ranks('test_profile:two_nodes', 4, asdict(a), '', timeout=150, backend='gloo', echo=False)[0]
    hw = hardware.assemble(a, got)
    assert {k for k in hw.tables if k[0]=='p2p'}=={('p2p',2,1), ('p2p',4,1), ('p2p',2,2)} and set(got['overlap'])==set(OPS)
    assert [hw.link(i, 4) for i in range(3)]==[(2,1), (4,1), (2,1)] and hw.link(0, 2)==(2,2)
    for op,held in (('p2p', 30), ('p2p_both', 50)):
        one = {k[1:]: t.ms[0] for k,t in hw.tables.items() if k[0]==op}
        assert one[2,1]<held<=min(one[4,1], one[2,2]) and hw.time(op, 2**16, *hw.link(0, 4))==one[2,1]
    hw.save(tmp_path)
    assert HardwareProfile.load(tmp_path)==hw and {k for k in json.loads((tmp_path/hardware_files(2, 2)['p2p']).read_text())}=={'pp_size_2', 'pp_size_4', 'unit'}

def killed_rank(args, progress): # runs on each rank in place of the sweep
    import torch.distributed as dist
    if dist.get_rank()==1: os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()

def failing_rank(args, progress=''): raise RuntimeError('no more links')

@pytest.mark.parametrize('body,message', [('killed_rank','rank 1 of 2 died without an error, ended by SIGKILL'), ('failing_rank','no more links')])
def test_a_rank_that_fails_is_one_line_and_nothing_is_written(body, message, tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, 'sweep', f'test_profile:{body}')
    t = time.time()
    said = says(profile_hardware, ProfileHardwareArgs(num_gpus_per_node=2, device='cpu', output_dir=str(tmp_path)))
    assert message in said and len(said)<200
    assert time.time()-t<60 and content(tmp_path)=={}

@pytest.mark.parametrize('bad,said', [(dict(node_rank='x'), "node_rank 'x'"), (dict(node_rank='2'), "node_rank '2'"), (dict(node_rank='$GALVATRON_UNSET'), 'node_rank'), (dict(master_port=''), 'master_port'),
    (dict(master_port='99999'), '65535'), (dict(timeout=0.), 'timeout'), (dict(overlap_time_multiply=0), 'overlap_time_multiply'), (dict(max_pp_deg=-1), 'max_pp_deg'), (dict(envs=['=1']), 'KEY=VALUE')])
def test_node_numbers_ports_and_limits_are_looked_at_first(bad, said, tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, 'run_sweep', lambda a: pytest.fail('ranks were started'))
    ask = lambda **k: ProfileHardwareArgs(**{**dict(num_nodes=2, num_gpus_per_node=2, node_rank='0', master_port='29555', device='cpu', output_dir=str(tmp_path/'new')), **k})
    assert said in says(profile_hardware, ask(**bad)) and not (tmp_path/'new').exists()

def test_variables_of_the_guide_are_looked_up(monkeypatch):
    monkeypatch.setenv('GV_NODE', '1'); monkeypatch.setenv('GV_PORT', '29555')
    a = hardware.resolve(ProfileHardwareArgs(2, 2, node_rank='$GV_NODE', master_port='$GV_PORT', device='cpu'))
    assert (a.node_rank, a.master_port)==('1', '29555')

@pytest.mark.parametrize('value', [None, ''])
def test_one_node_needs_no_variable(value, monkeypatch):
    for k in ('MASTER_ADDR','MASTER_PORT','RANK','WORLD_SIZE','LOCAL_RANK'): monkeypatch.delenv(k, raising=False)
    if value is not None: [monkeypatch.setenv(k, value) for k in ('MASTER_ADDR','MASTER_PORT','RANK')]
    ask = lambda nodes, **k: hardware.resolve(ProfileHardwareArgs(nodes, 2, device='cpu', **{**dict(master_addr='$MASTER_ADDR', master_port='${MASTER_PORT}', node_rank='$RANK'), **k}))
    assert ask(1).master_port==''
    assert 'node_rank' in says(ask, 2) and 'a master_port' in says(ask, 2, node_rank='1') and 'a master_addr' in says(ask, 2, node_rank='1', master_port='29555')

@pytest.mark.parametrize('said_by_torch', ['[pair.cc:553] Connection closed by peer [127.0.0.1]:21380. This is typically caused by a remote worker crashing.\nmore',
                                           'Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?'])
def test_a_rank_of_several_nodes_that_loses_another_is_no_traceback(said_by_torch, monkeypatch):
    def lost(args): raise RuntimeError(said_by_torch)
    slept = []
    monkeypatch.setattr(hardware.time, 'sleep', slept.append)
    monkeypatch.setattr(hardware, 'sweep', lost); monkeypatch.delenv('WORLD_SIZE', raising=False)
    for k,v in dict(RANK='2', LOCAL_RANK='0').items(): monkeypatch.setenv(k, v)
    assert 'a rank died' in (said := says(hardware._as_rank, ProfileHardwareArgs(device='cpu'))) and 'rank 2' in said
    assert min(slept)>5 # the launcher, which names the rank that died, comes first
    monkeypatch.setattr(hardware, 'sweep', failing_rank) # a fault of ours keeps its traceback
    with pytest.raises(RuntimeError, match='no more links'): hardware._as_rank(ProfileHardwareArgs(device='cpu'))

def test_a_node_of_several_adds_no_line_to_that_of_its_launcher_and_writes_only_as_node_0(tmp_path, monkeypatch, capfd):
    from galvatron.runtime import launch
    monkeypatch.setattr(launch, 'torchrun', lambda *a, **k: 137)
    for i in ('0', '1'):
        args = ProfileHardwareArgs(2, 2, node_rank=i, master_port='29555', device='cpu', output_dir=str(tmp_path/i))
        with pytest.raises(SystemExit, match='137'): profile_hardware(args)
    assert capfd.readouterr().err=='' and [p.name for p in tmp_path.iterdir()]==['0']

def test_the_printed_table_shows_where_it_was_cut(tmp_path, monkeypatch, capsys):
    from galvatron.cli import main
    from galvatron.profile.files import Table
    hw = HardwareProfile(1, 2, {('all_reduce', 2, 1):Table((2**16, 4*MIB), (.1, 40.)), ('p2p', 2, 1):Table((2**16, 16*MIB), (.1, 2.))}, device='CPU')
    monkeypatch.setattr(hardware, 'profile_hardware', lambda a: hw)
    assert main(['profile-hardware', '--end_mb', '16', '--output_dir', str(tmp_path)])==0
    said = capsys.readouterr().out.splitlines()
    assert '4 MiB    40.00 ms' in said[1] and '16 MiB     2.00 ms' in said[2] and said[3].startswith('1 of 2 tables end before 16 MiB') and 'max_call_ms' in said[3]

def test_more_ranks_than_the_arguments_say(monkeypatch):
    for k,v in dict(WORLD_SIZE='4', LOCAL_RANK='3', LOCAL_WORLD_SIZE='4', RANK='3').items(): monkeypatch.setenv(k, v)
    assert hardware.resolve(ProfileHardwareArgs(device='cpu')).num_gpus_per_node==4 # not 2, in a file for 2
    assert '4 ranks were started' in says(hardware.resolve, ProfileHardwareArgs(num_gpus_per_node=2, device='cpu'))

@pytest.mark.parametrize('what', ['hardware','model'])
def test_documented_files_alone_say_that_they_are_formulas(what, tmp_path):
    if what=='hardware': HardwareProfile.analytic('h100', 2, 4).save(tmp_path); load = lambda: HardwareProfile.load(tmp_path)
    else: ModelProfile.analytic(SPEC, 'h100').save(tmp_path); load = lambda: ModelProfile.load(tmp_path, SPEC)
    rich = next(tmp_path.glob(f'{what}_profile*'))
    rich.unlink()
    assert all(json.loads(t)['analytic']=='H100' for t in content(tmp_path).values())
    x = load()
    assert x.documented and x.analytic and x.device=='H100' and 'by formula' in x.summary()
    before = content(tmp_path); x.save(tmp_path)
    assert content(tmp_path)==before

def test_what_cannot_work_is_said_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware, 'run_sweep', lambda a: pytest.fail('ranks were started'))
    (tmp_path/'file').touch()
    args = lambda **k: ProfileHardwareArgs(**{**dict(num_gpus_per_node=2, device='cpu', output_dir=str(tmp_path)), **k})
    assert 'is a file, a folder is wanted' in says(profile_hardware, args(output_dir=str(tmp_path/'file'/'x')))
    def refused(**k): raise OSError(errno.EROFS, os.strerror(errno.EROFS)) # root may write anywhere, but not on such a disk
    for ask in (lambda: profile_hardware(args(output_dir=str(tmp_path/'new'/'x'))), lambda: profile_model(replace(TINY, output_dir=str(tmp_path/'new'/'x')), SPEC)):
        with monkeypatch.context() as mp:
            mp.setattr(tempfile, 'TemporaryFile', refused)
            assert 'nothing can be written there (Read-only file system)' in says(ask) and not (tmp_path/'new').exists()
    write_text(tmp_path/hardware_files(1, 2)['allreduce'], '{}')
    assert 'which machine' in says(profile_hardware, args())
    if not visible_gpus(): assert 'no GPU is visible' in says(profile_hardware, args(device='cuda'))
    assert 'backend' in says(profile_hardware, args(backend='mpi'))

def test_port_in_use(tmp_path):
    with socket.socket() as s:
        s.bind(('', 0)); s.listen()
        assert 'in use' in says(profile_hardware, ProfileHardwareArgs(num_gpus_per_node=2, device='cpu', output_dir=str(tmp_path), master_port=str(s.getsockname()[1])))

def test_nccl_tests(tmp_path):
    a = ProfileHardwareArgs(num_gpus_per_node=4, device='cuda', backend='nccl', nccl_test_dir=str(tmp_path), end_mb=10, scale=3)
    assert 'all_reduce_perf' in (m := says(hardware.find_nccl_tests, a)) and '--backend torch' in m
    for prog in hardware.NCCL_TESTS.values(): # programs that print what theirs print
        (tmp_path/prog).write_text('#!/bin/sh\necho "# nThread 1"\nb=$2; while [ $b -le $4 ]; do echo "  $b 16 float sum -1 38.0 1.7 3.0 0 38.2 1.7 3.0 0"; b=$((b*$6)); done\n')
        (tmp_path/prog).chmod(stat.S_IRWXU)
    rows = hardware.nccl_tables(a)
    assert {(r['op'],r['size']) for r in rows}=={(o,n) for o in OPS for n in (4,2)} and {(r['size'],r['stride']) for r in rows}=={(4,1),(2,1),(2,2)} and rows[0]['ms']==[.038]*6
    assert all(r['bytes']==hardware.message_sizes(10, 3) for r in rows) # the program ran twice: from 64 KiB, and from 1 MiB on
    (tmp_path/'all_reduce_perf').write_text('#!/bin/sh\necho "Test NCCL failure" >&2; exit 3\n')
    assert 'Test NCCL failure' in says(hardware.nccl_tables, a)

def test_what_nccl_tests_does_not_measure_is_said(tmp_path, monkeypatch, capfd):
    ran = []
    for p in (*hardware.NCCL_TESTS.values(), 'bin/mpirun'): (tmp_path/p).parent.mkdir(exist_ok=True); (tmp_path/p).touch()
    (tmp_path/'hostfile').write_text('a\nb\n')
    monkeypatch.setattr(hardware.subprocess, 'run', lambda cmd, **k: (ran.append(cmd), subprocess.CompletedProcess(cmd, 0, '65536 16 float sum -1 38.0 1.7 3.0 0\n', ''))[1])
    monkeypatch.setenv('NCCLTEST_OTHER_ARGS', '-n 5 --check 0')
    a = ProfileHardwareArgs(2, 3, device='cuda', backend='nccl', nccl_test_dir=str(tmp_path), mpi_path=str(tmp_path), hostfile=str(tmp_path/'hostfile'), avg_or_min_or_first='avg')
    rows, said = hardware.nccl_tables(a), capfd.readouterr().err.splitlines()
    assert all(c[-4:]==['-n', '5', '--check', '0'] for c in ran) and len(said)==2
    assert 'avg_or_min_or_first avg is not read' in said[0]
    assert 'all_reduce_size_3_stride_2' in said[1] and not any((r['size'], r['stride'])==(3, 2) for r in rows) # two ranks of one node, one of the other
    one = dict(device='GPU', torch='2', nccl='2', python='3', backend='nccl', context=1., communicator=1., contention=1., sharding=dict(ddp=0., zero2=0., zero3=0.), memory_mib=1., rates=(1., 1.), overlap={}, tables=rows)
    meta = lambda backend: hardware.assemble(replace(a, backend=backend), one).meta
    assert (meta('nccl')['backend'], meta('nccl')['groups'])==('nccl-tests', 'first') and 'all groups' not in meta('nccl')['method']
    assert (meta('torch')['backend'], meta('torch')['groups'])==('nccl', 'avg')

# --- model

def test_profile_then_resume_then_force(tmp_path, monkeypatch, capfd):
    a, real, ran = replace(TINY, output_dir=str(tmp_path)), model.run_task, []
    def interrupted(task, r, a, do, **k):
        if len(ran)==7: raise KeyboardInterrupt
        ran.append((task, *do))
        return real(task, r, a, do, **k)
    monkeypatch.setattr(model, 'run_task', interrupted)
    with pytest.raises(KeyboardInterrupt): profile_model(a, SPEC)
    assert f'interrupted; what was measured is in {tmp_path}' in capfd.readouterr().err
    assert list(content(tmp_path))==[model_files('fp32', SPEC.name)['rich']] # what is done is on disk; documented files are written when all is
    done, everything = ran, model.tasks_for(a, SPEC)
    ran = []
    m = profile_model_counting(a, monkeypatch, real, ran)
    whole = [(t, k) for form,width in dict.fromkeys((t.form, t.width) for t in everything) for k in ('time','memory') for t in everything if (t.form, t.width)==(form, width)] # all times of a build, then all its memory
    assert done==whole[:7] and ran==whole[7:]
    before = content(tmp_path)
    assert all(type(getattr(p, k)) is int for p in m.points for k in ('batch','seq','width')) and all(k==k.replace('.', '') for k in m.to_computation())
    assert len(before)==3 and profile_model_counting(a, monkeypatch, real, ran := [])==m and ran==[] and content(tmp_path)==before
    ModelProfile.load(tmp_path, SPEC, 'fp32').save(tmp_path)
    assert content(tmp_path)==before
    profile_model_counting(replace(a, force=True, batches='1', widths='1'), monkeypatch, real, ran := [])
    assert [k for _,k in ran]==['time','memory']
    doc = json.loads(content(tmp_path)[model_files('fp32', SPEC.name)['computation']])
    assert {'layernum[1]_bsz1_seq32','layernum[2]_bsz1_seq32','layertype_0_bsz1_seq32','layertype_other_bsz1_seq32'}==set(doc)

def test_files_of_before_do_not_outlive_a_forced_run_that_is_cut_short(tmp_path, monkeypatch):
    a, real = replace(TINY, output_dir=str(tmp_path), widths='1', batches='1,2', force=True), model.run_task
    profile_model(a, SPEC)
    def once(task, *rest, **k):
        if task.batch==2: raise KeyboardInterrupt
        return real(task, *rest, **k)
    def never(*a, **k): raise KeyboardInterrupt
    before = content(tmp_path)
    for cut,left in ((never, before.keys()), (once, {model_files('fp32', SPEC.name)['rich']})): # nothing new: nothing lost
        monkeypatch.setattr(model, 'run_task', cut)
        with pytest.raises(KeyboardInterrupt): profile_model(a, SPEC)
        assert content(tmp_path).keys()==left
        assert (content(tmp_path)==before)==(cut is never)

def profile_model_counting(a, monkeypatch, real, ran):
    monkeypatch.setattr(model, 'run_task', lambda task, r, a, do, **k: (ran.append((task, *do)), real(task, r, a, do, **k))[1])
    return profile_model(a, SPEC)

def test_out_of_memory_is_recorded_and_the_sweep_goes_on(tmp_path, monkeypatch, capfd):
    real = model.run_task
    def small_only(task, *rest, **k):
        if task.batch>=2: raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")
        return real(task, *rest, **k)
    monkeypatch.setattr(model, 'run_task', small_only)
    m = profile_model(replace(TINY, output_dir=str(tmp_path), profile_type='computation'), SPEC)
    assert {p.batch for p in m.points if not p.oom}=={1} and {p.batch for p in m.points if p.oom}=={2,4}
    assert 'out of memory' in capfd.readouterr().err and m.forward_ms(0, 2)>0
    assert ModelProfile.load(tmp_path, SPEC, 'fp32')==m
    monkeypatch.setattr(model, 'run_task', lambda *a, **k: (_ for _ in ()).throw(MemoryError()))
    assert 'every point ran out of memory' in says(profile_model, replace(TINY, output_dir=str(tmp_path/'none')), SPEC) and content(tmp_path/'none')=={}
    before = content(tmp_path) # points of before do not make a success of a run that had none
    assert 'every point ran out of memory' in says(profile_model, replace(TINY, output_dir=str(tmp_path), profile_type='computation', batches='8,16'), SPEC) and content(tmp_path)==before
    assert 'ran out of memory in an earlier run' in (said := says(profile_model, replace(TINY, output_dir=str(tmp_path), profile_type='computation', batches='2,4'), SPEC)) and '--force' in said and content(tmp_path)==before

def test_memory_is_counted_where_timing_ran_out_of_it(tmp_path, monkeypatch):
    real, a = model.run_task, replace(TINY, output_dir=str(tmp_path), widths='1', batches='1,2')
    def untimed(task, r, a, *rest, **k):
        if task.batch>1 and 'time' in model.wanted(a): raise MemoryError
        return real(task, r, a, *rest, **k)
    monkeypatch.setattr(model, 'run_task', untimed)
    m = profile_model(replace(a, profile_type='computation'), SPEC)
    assert {p.oom for p in m.points if p.batch>1}=={'time'}
    m = profile_model(replace(a, profile_type='memory', batches='2'), SPEC)
    assert all(p.activation_mib>0 and p.oom=='time' and p.forward_ms is None for p in m.points if p.batch>1)
    assert all(d['states_mib']>0 and d['oom']=='time' for d in m.depths if d['batch']>1) and ModelProfile.load(tmp_path, SPEC, 'fp32')==m
    monkeypatch.setattr(model, 'run_task', real)
    assert profile_model(replace(a, profile_type='computation'), SPEC)==m # known, so not tried again
    m = replace(m, points=tuple(replace(p, oom=None) for p in m.points), depths=tuple({k:v for k,v in d.items() if k!='oom'} for d in m.depths)); m.save(tmp_path)
    m = profile_model(replace(a, profile_type='all'), SPEC)
    assert not any(p.oom for p in m.points) and all(p.forward_ms>0 for p in m.points)
    rich = tmp_path/model_files('fp32', SPEC.name)['rich']
    rich.write_text(rich.read_text().replace('"batch": 1, ', '"batch": 1, "oom": "both", '))
    assert "oom: 'both' is not allowed (allowed: true, \"time\", \"memory\", false)" in says(ModelProfile.load, tmp_path, SPEC, 'fp32')

@pytest.mark.parametrize('where', ['run_task', 'build'])
def test_a_point_that_fails_is_noted_and_the_others_go_on(where, tmp_path, monkeypatch, capfd):
    a, real = replace(TINY, output_dir=str(tmp_path), widths='1,2', forms='tp', batches='1,2', profile_type='memory'), getattr(model, where)
    def faulty(x, *rest, **k):
        if where=='build' and x[0].width==2 or where=='run_task' and (x.width, x.batch)==(2, 1): raise RuntimeError('no such kernel\nand a long story')
        return real(x, *rest, **k)
    monkeypatch.setattr(model, where, faulty)
    said = says(profile_model, a, SPEC)
    n = 1 if where=='run_task' else 2
    assert f'{n} of 4 points failed' in said and 'tp 2, 1 x 32: RuntimeError: no such kernel (test_profile.py:' in said and 'long story' not in said+capfd.readouterr().err
    m = ModelProfile.load(tmp_path, SPEC, 'fp32')
    assert len(content(tmp_path))==2 and {(p.width, p.batch) for p in m.points}=={(1,1), (1,2), *([(2,2)] if n==1 else [])} and len(m.meta['failed'])==n
    monkeypatch.setattr(model, where, lambda *a, **k: (_ for _ in ()).throw(RuntimeError('no')))
    before = content(tmp_path)
    assert 'nothing was written' in says(profile_model, replace(a, batches='4'), SPEC) and content(tmp_path)==before
    monkeypatch.setattr(model, where, real)
    m = profile_model(a, SPEC)
    assert 'failed' not in m.meta and len({(p.width, p.batch) for p in m.points})==4

def test_nothing_of_another_machine_is_mixed_in(tmp_path):
    a = replace(TINY, output_dir=str(tmp_path), batches='1', widths='1')
    profile_model(a, SPEC)
    rich = tmp_path/model_files('fp32', SPEC.name)['rich']
    rich.write_text(rich.read_text().replace('"transformers": "', '"transformers": "0.'))
    assert "transformers '0." in says(profile_model, a, SPEC) and profile_model(replace(a, force=True), SPEC)
    rich.unlink()
    assert 'which machine' in says(profile_model, a, SPEC)

@pytest.mark.parametrize('kind,other', [('memory','computation'), ('computation','memory')])
def test_a_documented_file_of_another_machine_is_neither_replaced_nor_deleted(kind, other, tmp_path):
    a = replace(TINY, output_dir=str(tmp_path), batches='1', widths='1')
    name = model_files('fp32', SPEC.name)[kind]
    write_text(tmp_path/name, '{"theirs": 1}')
    before = content(tmp_path)
    for ask in ('computation', 'memory', 'all'): assert name in says(profile_model, replace(a, profile_type=ask), SPEC) and content(tmp_path)==before
    assert name in says(profile_model, replace(a, analytic='h200'), SPEC) and content(tmp_path)==before
    profile_model(replace(a, profile_type=other, force=True), SPEC) # which takes no leave of theirs
    assert len(content(tmp_path))==2 and name not in content(tmp_path)
    write_text(tmp_path/name, '{"theirs": 1}') # beside ours, which has none of the kind
    before = content(tmp_path)
    assert name in says(profile_model, replace(a, profile_type=kind), SPEC) and content(tmp_path)==before

@pytest.mark.parametrize('shipped', [False, True])
def test_formulas_do_not_replace_what_was_measured(shipped, tmp_path):
    m = ModelProfile.analytic(SPEC, 'h200', 'fp32', batches=(1,), widths=(1, 2))
    m = replace(m, analytic=False, meta=dict(shipped=True) if shipped else {}) # measured on a device of the same name
    m.save(tmp_path)
    before, a = content(tmp_path), replace(TINY, output_dir=str(tmp_path), analytic='h200')
    assert 'analytic False, now True' in says(profile_model, a, SPEC) and content(tmp_path)==before
    assert profile_model(replace(a, force=True), SPEC).analytic and profile_model(a, SPEC).analytic # the same formulas again

@pytest.mark.parametrize('which', ['model', 'hardware'])
def test_what_was_measured_in_another_way_is_not_gone_on_with(which, tmp_path, monkeypatch):
    from galvatron.profile import files
    a, now = replace(TINY, output_dir=str(tmp_path), batches='1', widths='1', profile_type='memory'), files.METHODS[which]
    args = ProfileHardwareArgs(num_gpus_per_node=1, device='cpu', end_mb=1, scale=16, output_dir=str(tmp_path))
    run = (lambda: profile_model(replace(a, batches='1,2'), SPEC)) if which=='model' else lambda: profile_hardware(args)
    profile_model(a, SPEC) if which=='model' else profile_hardware(args)
    before = content(tmp_path)
    with monkeypatch.context() as mp:
        mp.setitem(files.METHODS, which, 9)
        assert f'method {now}, now 9' in says(run) and content(tmp_path)==before
    monkeypatch.setitem(files.METHODS, which, 1)
    rich = next(tmp_path.glob('*_profile_*'))
    rich.write_text(rich.read_text().replace(f'"method": {now}', '"method": 1'))
    rich.write_text(rich.read_text().replace(', "method": 1', '')) # of before there were numbers
    assert '"method": 1' not in rich.read_text() and run()

def test_a_cpu_with_other_threads_is_another_machine(tmp_path, monkeypatch):
    a, n = replace(TINY, output_dir=str(tmp_path), batches='1', widths='1', profile_type='computation'), torch.get_num_threads()
    profile_model(a, SPEC)
    before = content(tmp_path)
    try:
        torch.set_num_threads(n+1); monkeypatch.setenv('OMP_NUM_THREADS', str(n+1))
        assert f'threads {n}, now {n+1}' in says(profile_model, replace(a, batches='1,2'), SPEC) and content(tmp_path)==before
        assert profile_model(replace(a, force=True), SPEC).meta['machine']['threads']==n+1
    finally: torch.set_num_threads(n)

def work_for_nothing(monkeypatch):
    "A CPU taken for a device that Python runs ahead of"
    monkeypatch.setattr(model, 'runs_ahead', lambda device: True)
    monkeypatch.setattr(model, 'busy', lambda device, ms: [])

def test_an_eager_layer_takes_no_less_than_python(tmp_path, monkeypatch):
    a = replace(TINY, output_dir=str(tmp_path), widths='1', batches='1,2', profile_type='computation')
    m = profile_model(a, SPEC)
    assert all(p.host_ms is None for p in m.points) # a CPU is its own host
    work_for_nothing(monkeypatch)
    monkeypatch.setattr(model, 'issue_ms', lambda *a: 2e6)
    m = profile_model(replace(a, force=True), SPEC)
    one = next(p for p in m.points if p.kind=='layer' and p.batch==1)
    assert all(p.host_bound for p in m.points) and one.host_ms==2e6 and one.forward_ms<1e6 and ModelProfile.load(tmp_path, SPEC, 'fp32').points==m.points
    for batch in (.5, 1, 2): assert abs(m.forward_ms(0, batch)+m.backward_ms(0, batch)-2e6)<1 # whatever the batch

def test_the_host_is_timed_once_for_a_build(tmp_path, monkeypatch):
    "Python's own times (here with the arithmetic): of a plain layer, a recomputed one, and of gradients that are added up, for all batches alike"
    real, asked = model.host_times, []
    def timed(b, task, ends):
        asked.append((task.form, task.width, task.batch))
        return real(b, task, ends)
    work_for_nothing(monkeypatch)
    monkeypatch.setattr(model, 'host_times', timed)
    a = replace(TINY, output_dir=str(tmp_path), widths='1,2', forms='tp', batches='2,1', mixed_precision='bf16')
    m = profile_model(a, SPEC)
    layers = [p for p in m.points if p.kind=='layer']
    assert asked==[('tp', 1, 1), ('tp', 2, 1)] and len({(p.width, p.host_ms, p.host_again_ms, p.host_add_ms) for p in layers})==2 and len(layers)==4
    assert all(min(p.host_again_ms, p.host_ms)>0 and (p.host_add_ms is None)==(p.width>1) for p in layers)
    assert all(p.host_ms>0 and p.host_again_ms is None for p in m.points if p.kind!='layer')
    assert ModelProfile.load(tmp_path, SPEC, 'bf16').points==m.points and m.host_ms(0, 2)[2]==m.host_ms(0)[2]

def test_single_precision_is_measured_as_training_runs_it(tmp_path, monkeypatch):
    before, real, seen = torch.get_float32_matmul_precision(), model.run_task, []
    def run(*a, **k):
        seen.append(torch.get_float32_matmul_precision())
        return real(*a, **k)
    monkeypatch.setattr(model, 'run_task', run)
    monkeypatch.setattr(model, 'matmul_precision', lambda allow, device: 'high' if allow else 'highest') # as on a GPU
    a = replace(TINY, output_dir=str(tmp_path), widths='1', batches='1')
    profile_model(a, SPEC)
    profile_model(replace(a, allow_tf32=0, force=True), SPEC)
    assert seen==['high']*2+['highest']*2 and torch.get_float32_matmul_precision()==before

def test_products_in_tf32_and_in_full_precision_are_two_machines(tmp_path, monkeypatch):
    monkeypatch.setattr(model, 'device_facts', lambda device: dict(device='a GPU', torch='2'))
    gpu, a = torch.device('cuda'), replace(TINY, output_dir=str(tmp_path))
    book = model.start_profile(a, SPEC, gpu)
    book.m.save(tmp_path)
    assert book.m.meta['machine']['tf32'] and model.start_profile(a, SPEC, gpu).path==book.path
    assert 'tf32 True, now False' in says(model.start_profile, replace(a, allow_tf32=0), SPEC, gpu)
    assert 'tf32' not in model.machine_of(a, torch.device('cpu')) and 'tf32' not in model.machine_of(replace(a, mixed_precision='bf16'), gpu)

def test_no_time_at_all_is_not_no_memory(tmp_path):
    assert 'time_limit 1e-06 s was over' in says(profile_model, replace(TINY, output_dir=str(tmp_path), time_limit=1e-6, widths='1', batches='1'), SPEC) and content(tmp_path)=={}

def test_sequence_mode_and_few_batches(tmp_path, capfd):
    a = replace(TINY, profile_mode='sequence', batches='', profile_batch_size=1, profile_min_seq_length=16, profile_max_seq_length=64, profile_seq_length_step=16, output_dir=str(tmp_path), widths='1')
    m = profile_model(a, SPEC)
    assert {p.seq for p in m.points}=={16,32,48,64} and m.forward_ms(0, 1, seq=100, mode='sequence')!=0
    few = replace(TINY, profile_mode='batch', batches='', profile_min_batch_size=1, profile_max_batch_size=2, output_dir=str(tmp_path/'b'), widths='1')
    profile_model(few, SPEC)
    assert 'use 8 or more' in capfd.readouterr().err
    m = profile_model(replace(few, profile_type='memory', profile_batch_size=3, output_dir=str(tmp_path/'c')), SPEC)
    assert {p.batch for p in m.points}=={3} and 'use 8 or more' not in capfd.readouterr().err # memory wants no line

def test_two_types_of_layers(tmp_path):
    t5 = ModelSpec.from_size('t5_hf', layers=4, seq=(16, 16), hidden_size=32, num_attention_heads=4, vocab_size=100)
    a = replace(TINY, output_dir=str(tmp_path), profile_seq_length_list='32,16', widths='1,2', batches='2')
    m = profile_model(a, t5)
    assert {(p.type, p.seq) for p in m.points if p.kind=='layer'}=={(0, 32), (1, 16)} and [d['layers'] for d in m.depths]==[[2, 2], [3, 2], [2, 3]]
    assert profile_model(a, t5)==m and 0<m.activation_mib(0, 1, 2, sequence_parallel=True)<m.activation_mib(0, 1, 2)<m.activation_mib(0, 1)
    assert ModelProfile.load((profile_model(ProfileModelArgs(analytic='h200', output_dir=str(tmp_path/'h')), t5), tmp_path/'h')[1], t5).forward_ms(1, 4)>0

# --- timing in alternation

class Moody:
    "A device that is slower with each call, and faster after a whole model"
    def __init__(self, drift, after): self.drift,self.after,self.calls,self.last,self.order = drift,after,0,0.,[]
    def once_ms(self, calls, device):
        out = []
        for c in calls:
            name,ms = c()
            out.append(ms*(1+self.drift*self.calls)*(self.after if self.last>=3 else 1.))
            self.calls,self.last = self.calls+1,ms
            self.order.append(name)
        return out

@pytest.mark.parametrize('drift,after', [(.05, 1.), (0., .97), (.005, .97)])
def test_neither_a_drifting_clock_nor_what_ran_before_changes_a_difference(drift, after, monkeypatch):
    run = lambda name, ms: lambda: (name, ms)
    runs = {'layer':[run('f', 1.), run('b', 2.)], 1:[run(1, 4.5)], 2:[run(2, 5.5)], 'head':[run('head', 3.5)]}
    d = Moody(drift, after)
    monkeypatch.setattr(model, 'once_ms', d.once_ms)
    got = model.alternate(runs, torch.device('cpu'), 0., least=12)
    assert [len(x) for v in got.values() for x in v]==[12]*5
    assert abs(model.excess(got[2][0], got[1][0])/model.middle(got['layer'][0])-1)<.05
    calls = [c for cs in runs.values() for c in cs]
    fixed = Moody(drift, after).once_ms(calls*12, None) # in one order, and in bursts
    apart = Moody(drift, after).once_ms([c for c in calls for _ in range(12)], None)
    off = lambda f, one, two: abs(model.excess(two, one)/model.middle(f)-1)
    if after<1: assert off(fixed[::5], fixed[2::5], fixed[3::5])>.05
    if drift>.01: assert off(apart[:12], apart[24:36], apart[36:48])>.5

def test_every_run_follows_every_other_equally_often(monkeypatch):
    d = Moody(0., 1.)
    monkeypatch.setattr(model, 'once_ms', d.once_ms)
    model.alternate({n:[lambda n=n: (n, 1.)] for n in 'abcdef'}, torch.device('cpu'), 0., least=4)
    first,rest = d.order[:6],d.order[6:]
    assert first==[*'abcdef'] and len(rest)==1+6*6 # a round to see how long it takes, one call for the host, as many rounds as runs
    pairs = [p for i in range(1, 37, 6) for p in zip(rest[i:i+6], rest[i+1:i+6])]
    assert len(pairs)==len({*pairs})==30

def test_rounds_are_spread_over_a_window(monkeypatch):
    "As many as fill it, whatever the budget and the bounds of a budget"
    monkeypatch.setattr(model, 'once_ms', lambda calls, device: [c() for c in calls])
    for window_ms,rounds in ((0., 4), (95., 10), (400., 40)): assert len(model.alternate({'a':[lambda: 10.]}, torch.device('cpu'), 0., window_ms=window_ms)['a'][0])==rounds

def test_warming_lasts_as_long_as_asked(monkeypatch):
    "In time, whatever a first round claims that was slow; what counts follows"
    monkeypatch.setattr(model, 'once_ms', lambda calls, device: [c() for c in calls])
    ran = []
    def work(): ran.append(time.perf_counter()); time.sleep(.005); return 10.
    for heat_ms,least in ((95., .085), (0., 0.)):
        ran.clear()
        model.alternate({'a':[work]}, torch.device('cpu'), 0., heat_ms=heat_ms, least=4)
        assert ran[-5]-ran[0]>=least and len(ran)>=1+(heat_ms>0)+1+4 # the first round is 10 ms of it by the clock of the device; a lead, and what is kept
    assert len(ran)==1+1+4

def test_warming_never_waits_for_the_pass_it_has_just_issued(monkeypatch):
    "Passes follow each other without a stop, and Python is not far ahead"
    seen = []
    class Mark:
        def __init__(self): self.of = seen.count('pass')
        def synchronize(self): seen.append(self.of)
    monkeypatch.setattr(torch.cuda, 'current_stream', lambda device: type('', (), dict(record_event=lambda self: Mark()))())
    model.heat([lambda: None, lambda: (seen.append('pass'), time.sleep(.002))], type('', (), dict(type='cuda'))(), 20.)
    n = seen.count('pass')
    assert n>=2 and seen==['pass', *(s for k in range(1, n) for s in ('pass', k))]

def test_how_long_a_device_is_warmed(monkeypatch):
    "In full by default; a sweep that asks for less still warms a device that has rested"
    asked = []
    monkeypatch.setattr(model, 'times', lambda b, task, budget_ms, heat_ms: asked.append(heat_ms))
    monkeypatch.setattr(model, 'Bench', lambda *args: None)
    def heat_ms(rest_s, settle_ms=None, compile=False, device='cuda'):
        r = type('', (), dict(device=torch.device(device), options=RunOptions(compile=compile)))()
        model.run_task(model.Task('tp', 1, 1, (32,), kinds=()), r, ProfileModelArgs() if settle_ms is None else ProfileModelArgs(settle_ms=settle_ms), {'time'}, False, rest_s)
        return asked.pop()
    assert {heat_ms(rest) for rest in (0., 1., 100.)}=={1500.} and heat_ms(1., device='cpu')==0
    assert [heat_ms(rest, 40.) for rest in (0., 1., 100.)]==[40., 500., 1500.] and heat_ms(0., 0.)==0
    assert heat_ms(0., 40., compile=True)==1500. and heat_ms(0., 4000.)==4000.
    assert 'settle_ms -1 (allowed: 0 or more)' in says(ProfileModelArgs(settle_ms=-1).check)

def test_times_of_two_alternations_are_not_compared(tmp_path):
    a = replace(TINY, output_dir=str(tmp_path), widths='1', batches='2')
    profile_model(a, SPEC)
    m = profile_model(replace(a, profile_type='computation', layernum_max=3), SPEC)
    at = {d['layers'][0]:d for d in m.depths}
    assert {n for n,d in at.items() if 'forward_ms' in d}=={1,3} and all(k in at[2] for k in ('states_mib','peak_mib'))
    assert at[3]['excess_spread_ms']>=0 and {'layernum[1]_bsz2_seq32','layernum[3]_bsz2_seq32'}=={k for k in m.to_computation() if k.startswith('layernum')}

def test_layer_and_whole_models_come_from_one_build(tmp_path, monkeypatch):
    built, real = [], model.build
    monkeypatch.setattr(model, 'build', lambda group, *r: (built.append({(t.form,t.width) for t in group}), real(group, *r))[1])
    m = profile_model(replace(TINY, output_dir=str(tmp_path), forms='tp', batches='1,2'), SPEC)
    assert built==[{('tp',1)}, {('tp',2)}]
    assert {(d['layers'][0],d['batch']) for d in m.depths}=={(n,b) for n in (1,2) for b in (1,2)} and len(m.optimizer)==2

def test_a_layer_is_kept_where_whole_models_do_not_fit(tmp_path, monkeypatch):
    real = model.run_task
    def no_models(task, *rest, **k):
        if task.depths: raise RuntimeError("can't allocate memory")
        return real(task, *rest, **k)
    monkeypatch.setattr(model, 'run_task', no_models)
    m = profile_model(replace(TINY, output_dir=str(tmp_path), widths='1', batches='1'), SPEC)
    assert all(d['oom'] for d in m.depths) and not any(p.oom for p in m.points)

def test_what_a_further_communicator_holds(monkeypatch):
    "The difference that it makes after an all-reduce and an all-to-all, on the rank where it is largest; the group is ended, and old files do without"
    import torch
    from unittest.mock import Mock
    held, ran = iter([2000., 3130.]), []
    monkeypatch.setattr(hardware, 'context_mib', lambda device: next(held))
    monkeypatch.setattr(hardware, 'collective', lambda op, nbytes, group, device: lambda: ran.append((op, group)))
    monkeypatch.setattr(torch.cuda, 'synchronize', lambda device: None)
    s = Mock(world=2, device=torch.device('cuda'), agree=lambda x: x+20.)
    assert hardware.communicator_mib(s)==1150. and ran==[('all_reduce', s.dist.new_group.return_value), ('all_to_all', s.dist.new_group.return_value)]
    s.dist.destroy_process_group.assert_called_once_with(s.dist.new_group.return_value)
    assert hardware.communicator_mib(Mock(world=1, device=torch.device('cuda')))==0.
    h = HardwareProfile.analytic('h200', 1, 2)
    known = replace(h, meta=h.meta|dict(communicator_mib=1150.))
    assert HardwareProfile.from_rich(known.to_rich())==known and 'communicator_mib' not in HardwareProfile.from_rich(h.to_rich()).meta

@pytest.mark.parametrize('key,bad', [('sharding_ms', 'fast'), ('sharding_ms_zero3', -1.), ('sharding_ms', -1.), ('contention', 0.), ('contention', None), ('context_mib', [1]), ('communicator_mib', -1.)])
def test_numbers_beside_the_tables_are_read_with_care(key, bad):
    "A contention of 0 once kept the search going for ever"
    d = HardwareProfile.analytic('h200', 1, 2).to_rich()
    assert HardwareProfile.from_rich(d|dict(meta=d['meta']|dict(contention=1., sharding_ms=0., context_mib=0.))).meta['contention']==1.
    with pytest.raises(GalvatronError, match=f'meta, {key}: .* is no measurement'): HardwareProfile.from_rich(d|dict(meta=d['meta']|{key:bad}))
