"The benchmark of one GPU and its page, with toy shapes: every part writes its file, and the page reads them"
import json, os, subprocess, sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT/'tools'))

def test_cases_read_as_they_are_written():
    from steps import Case
    for text in ('llama-7b/16 4x4096', 'llama-1b 8x2048 r4 c2 eager', 'gpt-1.5b 2x8192 fp32', 'llama-3b 1x4096 r?'): assert str(Case.parse(text))==text
    case = Case.parse('llama-7b/16 4x4096 r3 c2 eager')
    assert case.plan.n_layers==16 and sum(s.recompute for s in case.plan.layers)==3 and case.plan.chunks==2 and not case.options.compile and case.spec.seq==4096
    for bad in ('llama-9b 1x1', 'llama-1b 1x1 x3'):
        with pytest.raises(ValueError): Case.parse(bad)

def test_a_trace_is_summed_up():
    "Two steps: a product of 300 us, a copy that runs 50 us beside it and 50 alone, a gap of 100 us, an attention of 100"
    from steps import kind_of, summarise
    e = lambda ts, dur, name, cat='kernel': dict(ts=ts, dur=dur, name=name, cat=cat)
    t = summarise([e(0, 300, 'nvjet_hsh'), e(250, 100, 'Memcpy HtoD', 'gpu_memcpy'), e(450, 100, 'cudnn_generated_fort_native_sdpa_sm90_flash_bprop'), e(0, 9, 'aten::mm', 'cpu_noise')], 2)
    assert (t['span_ms'], t['busy_ms'], t['idle_ms'], t['copies_ms'], t['exposed_copies_ms'])==pytest.approx((.275, .225, .05, .05, .025))
    assert t['by_kind']['matmul']['ms']==pytest.approx(.15) and t['by_kind']['attention']['calls']==.5 and t['largest_gaps'][0]['us']==100
    names = ('triton_poi_fused_add_copy_copy__div_mul_sqrt_sub_unbind_0', 'triton_red_fused__to_copy_add_amax_exp_log_sub_sum_unsqueeze_0', 'triton_poi_fused_add_copy__0', 'triton_poi_fused__unsafe_view_mul_silu_4',
             'void cudnn::fusion::convert_dq_to_16bits<true>(void const*, void*)', 'nvjet_sm90_tst_64x128_64x8_2x1_v_bz_NTN') # of a run on an H200
    assert [kind_of(n) for n in names]==['optimizer', 'loss', 'gradients added up', 'layers, fused', 'attention', 'matmul']

def test_communication_is_counted_beside_what_it_hides_behind():
    "A message of 200 us: 60 us beside a product, 50 beside attention, 90 alone"
    from gpu_trace import shown, summarise
    e = lambda ts, dur, name: dict(ph='X', cat='kernel', ts=ts, dur=dur, name=name)
    t = summarise([e(0, 100, 'nvjet_hsh'), e(40, 200, 'ncclDevKernel_AllGather'), e(150, 50, 'cudnn_generated_fort_native_sdpa_sm90_flash_fprop')], 1)
    assert (t['step'], t['communication'], t['exposed'])==pytest.approx((.24, .2, .09)) and t['beside']==pytest.approx(dict(matmul=.06, attention=.05))
    assert 'communication beside matmul 0.1, attention 0.1' in shown('a', t)

def test_unpacking_profiles_loses_nothing(tmp_path):
    import profile_h200 as tool
    from dataclasses import replace
    from galvatron.profile.files import ModelProfile
    spec, root = tool.spec_of('llama-7b', True), tmp_path/'galvatron'
    whole = tuple(dict(layers=[n], batch=1, seq=[32], forward_ms=1.+n) for n in (1, 2))
    m = replace(ModelProfile.analytic(spec, 'h200', seqs=(32,)), depths=whole)
    def packed(m):
        for p in (tmp_path/'work/llama_hf').glob('*'): p.unlink()
        m.save(tmp_path/'work/llama_hf'); tool.pack(tmp_path/'work', tmp_path)
        tool.unpack(tmp_path/'profiles.tar.gz', root)
        return ModelProfile.load(root/'model_zoo/llama_hf/configs', spec)
    assert (got := packed(m)).meta['shipped'] and got.points==m.points
    for less in (replace(m, points=m.points[1:]), replace(m, depths=()), replace(m, optimizer=())):
        with pytest.raises(SystemExit, match='would lose'): packed(less)
    assert ModelProfile.load(root/'model_zoo/llama_hf/configs', spec).points==m.points
    for machine in dict(device='A100'), dict(compile=True):                                  # its times would stand beside those of the other
        replace(m, points=m.points[1:], meta={**m.meta, 'machine':machine}).save(tmp_path/'work/llama_hf'); tool.pack(tmp_path/'work', tmp_path)
        with pytest.raises(SystemExit, match=f'{[*machine][0]} None there'): tool.unpack(tmp_path/'profiles.tar.gz', root, keep=True)
    replace(m, points=m.points[1:]).save(tmp_path/'work/llama_hf'); tool.pack(tmp_path/'work', tmp_path)
    for _ in range(2): tool.unpack(tmp_path/'profiles.tar.gz', root, keep=True)
    assert {p.key: p for p in ModelProfile.load(root/'model_zoo/llama_hf/configs', spec).points}=={p.key: p for p in m.points}
    fresh = replace(m, depths=tuple({**d, 'batch':4, 'excess_spread_ms':.1} for d in whole)) # the first batch was not compared again
    fresh.save(tmp_path/'work/llama_hf')
    tool.restore(tmp_path/'work', 'llama-7b', m, True, 'bf16')
    assert tool.lost(m, ModelProfile.load(tmp_path/'work/llama_hf', spec))==[]

def test_a_joined_profile_says_what_is_of_another_call():
    import profile_h200 as tool
    from dataclasses import replace
    from galvatron.profile.files import ModelProfile
    m, whole = ModelProfile.analytic(tool.spec_of('llama-7b', True), 'h200', seqs=(32,)), [dict(layers=[1], batch=b, seq=[32], forward_ms=1.) for b in (1, 2)]
    old = replace(m, depths=tuple(whole), meta=dict(date='1', until='3', other_calls=[dict(date='0')]))
    new = replace(m, points=m.points[5:], depths=(whole[0],), meta=dict(date='4', until='5', other_calls=[dict(date='2')]))
    assert tool.joined(old, new).meta==dict(date='4', until='5', other_calls=[dict(date='2'), dict(date='0', until='3', points=5, whole_models=1)])
    assert tool.joined(old, replace(old, meta=new.meta)).meta==new.meta # nothing was kept

def test_several_gpus_refuse_unknown_words(tmp_path):
    "before anything is measured, or written over what an earlier run left"
    for words in (['--parts', 'sped'], ['--parts', 'speed', '--plans', 'zero3,zero4']):
        p = subprocess.run([sys.executable, ROOT/'tools/bench_multi_gpu.py', '--tiny', '--nproc', '2', '--out', tmp_path, *words], capture_output=True, text=True, timeout=60, env=dict(os.environ, PYTHONPATH=str(ROOT)))
        assert p.returncode==2 and f"{words[-1].split(',')[-1]}: allowed are" in p.stderr and not list(tmp_path.iterdir())

@pytest.mark.timeout(240)
def test_parts_and_page(tmp_path):
    def run(*args): subprocess.run([sys.executable, str(ROOT/'tools/bench_h200.py'), '--tiny', '--out', str(tmp_path), *args], check=True, timeout=200, capture_output=True, env=dict(os.environ, PYTHONPATH=str(ROOT)))
    run('--parts', 'speed,predict,trace', '--cases', 'llama-1b 4x4096 r2 c2 eager')
    got = {p: json.loads((tmp_path/f'{p}.json').read_text()) for p in ('speed', 'predict', 'trace')}
    row = got['speed']['rows'][0]
    assert row['recompute']==2 and row['chunks']==2 and row['ms']>0 and row['predicted']['ms']>0 and row['predicted']['source']=='formulas'
    assert got['trace']['rows'][0]['trace']['by_kind']
    from execnb.nbio import read_nb
    from execnb.shell import CaptureShell
    os.environ['GALVATRON_H200'] = str(tmp_path)
    try: CaptureShell(ROOT/'nbs/tutorials').run_all(read_nb(ROOT/'nbs/tutorials/h200.ipynb'), exc_stop=True, preproc=lambda c: c.cell_type=='code' and 'eval: false' in c.source)
    finally: del os.environ['GALVATRON_H200']

def test_results_of_several_calls_become_one(tmp_path):
    "A case measured later replaces what was skipped or measured before; blocks of other trainers all stay; merging twice changes nothing"
    from bench_h200 import merge
    def file(folder, part, date, rows, **more):
        (tmp_path/folder).mkdir(exist_ok=True)
        (tmp_path/folder/f'{part}.json').write_text(json.dumps(dict(part=part, machine={'device': folder}, tiny=True, command=folder, date=date, seconds=1., rows=rows, **more)))
    file('into', 'speed', '1', [dict(case='a', ms=1.), dict(case='b', ms=2.), dict(case='c', skipped='out of time')])
    file('later', 'speed', '2', [dict(case='b', ms=3.), dict(case='c', ms=4.), dict(case='a', skipped='out of time')])
    file('into', 'rivals', '1', [dict(case='a', who='ours', ms=1.), dict(case='a', who='hf', skipped='out of time')], ratios=[dict(case='a', ours_over=dict(x=2.))])
    file('later', 'rivals', '2', [dict(case='a', who='ours', ms=2.), dict(case='a', who='hf', ms=3.)], ratios=[dict(case='a', ours_over=dict(hf=1.5))])
    file('later', 'memory', '2', [dict(case='a r0')])
    for _ in range(2): merge(tmp_path/'into', [tmp_path/'later'])
    got = {p: json.loads((tmp_path/'into'/f'{p}.json').read_text()) for p in ('speed', 'rivals', 'memory')}
    assert got['speed']['rows']==[dict(case='a', ms=1.), dict(case='b', ms=3., run=1), dict(case='c', ms=4., run=1)]
    assert [c['date'] for c in got['speed']['runs']]==['1', '2'] and got['memory']['runs'][0]['machine']=={'device': 'later'} and got['memory']['rows'][0]['run']==0
    assert [(r['who'], r['ms']) for r in got['rivals']['rows']]==[('ours', 1.), ('ours', 2.), ('hf', 3.)] and [r['ours_over'] for r in got['rivals']['ratios']]==[dict(x=2.), dict(hf=1.5)]

@pytest.mark.timeout(240)
def test_plans_of_several_gpus_run_on_gloo(tmp_path):
    "The benchmark of several GPUs on two processes; and what of --minutes is over is named, not run"
    def run(*args): return subprocess.run([sys.executable, str(ROOT/'tools/bench_multi_gpu.py'), '--tiny', '--nproc', '2', '--out', str(tmp_path), *args], timeout=110, capture_output=True, text=True, env=dict(os.environ, PYTHONPATH=str(ROOT), CUDA_VISIBLE_DEVICES='')).stdout
    said = run('--parts', 'correctness', '--plans', 'tp-sp,1f1b x8')
    rows = json.loads((tmp_path/'multi_gpu.json').read_text())['correctness']
    assert list(rows)==['tp-sp', '1f1b x8'] and all(r['ok'] and r['error']<1e-5 for r in rows.values()), said
    run('--parts', 'restart,trainers', '--minutes', '0')
    over = dict(skipped='out of time')
    left = json.loads((tmp_path/'multi_gpu.json').read_text())
    assert left['correctness']==rows and left['trainers']==left['restart']==over
