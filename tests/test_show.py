"The page of a plan: as a file, in the hands of the command line, and in a real browser where one is installed"
import json, re, time
from dataclasses import replace
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser
from galvatron.cli import main
from galvatron.cost.pipeline import predict
from galvatron.model_spec import ModelSpec
from galvatron.plan import LayerStrategy, Plan, RunOptions, VocabStrategy
from galvatron.profile.files import HardwareProfile, ModelProfile
from galvatron.show import FOLDER, page

ROOT = Path(__file__).resolve().parent.parent
AXE = ROOT/'node_modules/axe-core/axe.min.js'
SPEC = ModelSpec.from_size('llama_hf', 'llama-7b')
SAID = dict(model='llama-7b', spec=SPEC.digest(), world_size=8, hardware='analytic A100 1x8', analytic=True, sequence_parallel=True, mixed_precision='bf16', memory_constraint_gib=48)

def mixed():
    two, four, sp, z3 = LayerStrategy(2, dp_type='zero2'), LayerStrategy(4, dp_type='zero2', recompute=True), LayerStrategy(2, True, dp_type='zero2'), LayerStrategy(dp_type='zero3')
    return Plan((two,)*8 + (four,)*8 + (sp,)*8 + (z3,)*8, VocabStrategy(2), 2, (), 'pipedream_flush', 8, 64, 'zero2', SAID)

@pytest.fixture(scope='module')
def made(tmp_path_factory):
    "A folder with plans, measurements and pages, written by the command"
    d = tmp_path_factory.mktemp('show')
    mixed().save(d/'a.json')
    replace(Plan.uniform(32, 8, 1, 2, global_train_batch_size=64, chunks=8, vocab_tp=2, default_dp_type='zero2'), provenance=SAID).save(d/'b.json')
    rows = [dict(step=i+1, ms=4600+i, loss=9-i/10) for i in range(20)]
    rows[9]['measured_mib'] = [29000., 34000.]
    (d/'metrics.jsonl').write_text(''.join(json.dumps(r)+'\n' for r in rows))
    assert main(['show', str(d/'a.json'), '--metrics', str(d), '--html', str(d/'one.html')])==0
    assert main(['show', str(d/'a.json'), '--compare', str(d/'b.json'), '--html', str(d/'two.html'), '--lang', 'zh', '--no_near'])==0
    spec = ModelSpec.from_size('llama_hf', 'llama3-405b')
    wide = Plan.uniform(126, 4096, 16, 8, global_train_batch_size=4096, chunks=128, pipeline_type='pipedream_flush', vocab_tp=8, default_dp_type='zero2', pp_division=(7,)+(8,)*14+(7,))
    begin = time.perf_counter()
    page(predict(wide, spec, HardwareProfile.analytic('h100', 512, 8), ModelProfile.analytic(spec, 'h100'), RunOptions(sequence_parallel=True))).save(d/'big.html')
    assert time.perf_counter()-begin < 10
    Plan.uniform(4, 4, 1, 2).save(d/'bare.json')
    assert main(['show', str(d/'bare.json'), '--world_size', '4', '--html', str(d/'bare.html')])==0
    return d

def data_of(path): return json.loads(re.search(r'id="data">(.*?)</script>', Path(path).read_text(), re.S)[1])

def test_page_is_one_file(made):
    for name in ('one', 'two', 'big', 'bare'):
        text = (made/f'{name}.html').read_text()
        assert len(text)<400_000 and "default-src 'none'" in text                      # the browser itself would refuse to load anything
        assert not re.search(r'<link|@import|\bfetch\(|XMLHttpRequest|<img|<iframe|src=', text)
        assert set(re.findall(r'https?://[^\s\'"<>)]+', text)) <= {'http://www.w3.org/2000/svg'}

def test_numbers_of_the_page_are_those_of_the_cost_model(made):
    a, want = data_of(made/'one.html')['plans'][0], predict(mixed(), SPEC, HardwareProfile.analytic('a100', 1, 8), ModelProfile.analytic(SPEC, 'a100'), RunOptions(sequence_parallel=True), memory_mib=48*1024)
    assert a['ms']==want.iteration_ms and a['peak']==want.peak_mib and a['budget']==48*1024
    for s, w in zip(a['stages'], want.stages):
        assert sum(s['memory'].values())==pytest.approx(w.peak_mib, rel=1e-5) and sum(s['time'].values())==pytest.approx(want.iteration_ms, rel=1e-5)
    assert [r[3] if len(r)>3 else r[0] for s in a['stages'] for r in s['runs']]==['embedding', 0, 8, 16, 24, 'head']
    d = data_of(made/'two.html')
    assert d['compared'] and len(d['plans'])==2 and d['plans'][1]['pp']==1 and d['lang']=='zh'

def test_both_languages_have_all_words():
    # keys that the script puts together end in 1 where there is one stage
    words, script = json.loads((FOLDER/'words.json').read_text()), (FOLDER/'page.js').read_text()
    assert words['en'].keys()==words['zh'].keys() and words['en']['kinds'].keys()==words['zh']['kinds'].keys()
    for key in words['en']:
        if isinstance(words['en'][key], str): assert sorted(re.findall(r'\{\w+\}', words['en'][key]))==sorted(re.findall(r'\{\w+\}', words['zh'][key])), key
    asked = set(re.findall(r"say\('(\w+)'", script)) | set(re.findall(r'data-t="(\w+)"', (FOLDER/'page.html').read_text()))
    assert asked and asked <= words['en'].keys()
    hardware = replace(HardwareProfile.analytic('a100', 1, 8), meta=dict(communicator_mib=700.))
    terms = {t for s in predict(mixed(), SPEC, hardware, ModelProfile.analytic(SPEC, 'a100')).stages for t in (*s.time, *s.memory)}
    assert 'communicators' in terms <= words['zh']['terms'].keys()

MEASURED = ['{"step":1,"ms":"x"}', '{"step":"a","ms":1}', '{"step":1,"ms":null}', '{"step":1,"ms":0}', '{"step":1,"ms":-1}', '{"step":1,"ms":NaN}', '{"step":1,"ms":1e999}', '[1]']

def test_measurements_that_are_none_are_passed_over(made, tmp_path, capsys):
    run = tmp_path/'metrics.jsonl'
    for line in MEASURED:
        run.write_text(line+'\n')
        assert main(['show', str(made/'a.json'), '--metrics', str(run), '--no_near'])==2 and 'no line has a step and its ms' in capsys.readouterr().err
    run.write_text('\n'.join(MEASURED) + '\n{"step":1,"ms":5000,"loss":NaN,"measured_mib":"x"}\n{"step":2,"ms":5000,"measured_mib":[1,null]}\n{"step":3,"m') # diverged, and still being written
    assert main(['show', str(made/'a.json'), '--metrics', str(run), '--no_near', '--html', str(tmp_path/'x.html')])==0
    text = (tmp_path/'x.html').read_text()
    assert 'NaN' not in re.search(r'id="data">(.*?)</script>', text, re.S)[1] and data_of(tmp_path/'x.html')['measured']['steps']==[[1, 5000, None], [2, 5000, None]]

def test_a_file_of_several_plans_tells_of_each_by_itself(made, tmp_path, capsys):
    "And one of an earlier version, whose steps do not name their plan, that it may be of several"
    a, b = (Plan.load(made/f'{x}.json').digest() for x in 'ab')
    rows = [dict(step=i+1, plan=a if i<30 or i>=50 else b, ms=100. if i<30 or i>=50 else 200., loss=1.) for i in range(70)]
    rows += [dict(step=30, plan=a, measured_mib=[1., 2.]), dict(step=50, plan=b, measured_mib=[3.])]
    rows[9]['measured_mib'] = [.5, .5]
    (tmp_path/'metrics.jsonl').write_text(''.join(json.dumps(r)+'\n' for r in rows))
    def measured(plan):
        assert main(['show', str(made/f'{plan}.json'), '--metrics', str(tmp_path), '--no_near', '--json'])==0
        d = json.loads(capsys.readouterr().out)
        return [d['measured'][k] for k in ('n', 'of', 'ms', 'mib')], 'may be of several' in ' '.join(d['notes'])
    assert measured('a')==([45, '6-30, 51-70', 100., [1., 2.]], False) and measured('b')==([15, '36-50', 200., [3.]], False)
    assert main(['show', str(made/'bare.json'), '--world_size', '4', '--metrics', str(tmp_path)])==2 and 'nothing was measured under this plan' in capsys.readouterr().err
    for r in rows: r.pop('plan')
    (tmp_path/'metrics.jsonl').write_text(''.join(json.dumps(r)+'\n' for r in rows))
    assert measured('a')[0][:2]==[65, '6-70'] and measured('a')[1]

def test_nodes_of_a_cluster_whose_ranks_were_said(made, capsys):
    "Eight ranks by fours are two nodes: the sums between them go through adapters"
    priced = lambda *more: (main(['show', str(made/'a.json'), '--analytic', 'a100', '--no_near', '--json', *more]), json.loads(capsys.readouterr().out)['plans'][0]['predicted_ms'])[1]
    assert priced('--world_size', '8', '--num_gpus_per_node', '4')==priced('--num_nodes', '2', '--num_gpus_per_node', '4')>priced('--world_size', '8', '--num_nodes', '1')

def test_text(made, capsys):
    assert main(['show', str(made/'a.json'), '--metrics', str(made)])==0
    out = capsys.readouterr().out
    assert 'memory of a GPU' in out and 'measured: 4,6' in out and max(map(len, out.splitlines()))<240
    for bad, word in (('--lang xx', 'lang'), ('--compare nosuch.json', 'nosuch.json'), ('--metrics nosuch', 'nosuch'), ('--profiles nosuch', 'nosuch'), ('--analytic tpu', 'tpu')):
        assert main(['show', str(made/'a.json'), *bad.split()])==2
        assert word in (err := capsys.readouterr().err) and err.count('\n')==1, bad

@pytest.mark.parametrize('change', [dict(n_heads=0), dict(n_layers='two'), dict(computation_profiling=5), dict(memory_profiling=5), dict(memory_profiling={'layertype_0': 5}), dict(memory_profiling={'layertype_0': {'32': 5}})])
def test_older_visualisers_file_is_checked(change, tmp_path, capsys):
    d = dict(model_config=dict(dim=64, n_heads=4, ffn_dim=128, vocab_size=100, n_layers=2), computation_profiling={'layertype_0_bsz8_seq32': 1.0}, memory_profiling={})
    for k, v in change.items(): (d if k in d else d['model_config'])[k] = v
    (tmp_path/'x.json').write_text(json.dumps(d))
    assert main(['show', str(tmp_path/'x.json')])==2 and next(iter(change)).split('_')[0] in (err := capsys.readouterr().err) and err.count('\n')==1

def test_older_visualisers_file(made, capsys):
    folder = ROOT/'galvatron/model_zoo/llama_hf/configs'
    parts = {f'{k}_profiling': json.loads((folder/f'{k}_profiling_bf16_llama3-8b.json').read_text()) for k in ('computation', 'memory')}
    (made/'old.json').write_text(json.dumps(parts | dict(model_config=dict(n_heads=32, dim=4096, ffn_dim=14336, n_layers=32, vocab_size=128256))))
    assert main(['show', str(made/'old.json'), '--world_size', '8', '--pp_deg', '2', '--global_tp_deg', '2', '--vocab_tp', '2', '--global_train_batch_size', '32', '--chunks', '4', '--html', str(made/'old.html')])==0
    p = data_of(made/'old.html')['plans'][0]
    assert p['priced'] and p['pp']==2 and p['model']['params']==ModelSpec.from_size('llama_hf', 'llama3-8b').params
    (made/'worse.json').write_text(json.dumps(parts | dict(model_config=dict(dim=1))))
    assert main(['show', str(made/'worse.json')])==2 and 'n_heads' in capsys.readouterr().err

# what follows needs a browser ---------------------------------------------------------------------------------------------
needs_browser = pytest.mark.skipif(not CHROMIUM, reason='no chromium is installed (apt-get install chromium)')

@pytest.fixture(scope='module')
def browser():
    with Browser() as b: yield b

@needs_browser
@pytest.mark.parametrize('name', ['one', 'two', 'big', 'bare'])
def test_opens(made, browser, name):
    for width, dark in ((1280, False), (390, True)):
        browser.open(made/f'{name}.html', width, dark=dark, mobile=width<600)
        assert browser.errors==[] and browser.js('document.documentElement.scrollWidth')==width            # nothing sticks out of a phone
        assert browser.js('document.documentElement.dataset.theme')==('dark' if dark else 'light')
        assert browser.js('document.querySelectorAll("#map svg rect.cell").length')>0
        assert browser.js('document.querySelectorAll("svg *").length')<12_000
        assert not browser.js('/undefined|NaN|\\[object/.test(document.body.innerText)')

@needs_browser
def test_hover_and_keys_read_numbers(made, browser):
    browser.open(made/'one.html')
    tip = lambda: browser.js('document.getElementById("tip").hidden ? "" : document.getElementById("tip").textContent')
    browser.hover('#memory .track i')
    assert re.search(r'parameters: [\d.]+ GiB \([\d.]+\s%\)', tip())
    browser.hover('#map rect.cell', 2)
    assert 'GPU 2' in tip() and 'ZeRO-2' in tip()
    browser.hover('#timeline rect.act')
    assert 'forward, micro-batch 0' in tip()
    browser.press('Escape')
    assert tip()==''
    browser.js('document.querySelector("#timeline .draw").focus()')
    browser.press('ArrowRight'); browser.press('ArrowRight')
    assert 'micro-batch 1' in tip()

@needs_browser
def test_stage_language_theme_and_comparison(made, browser):
    browser.open(made/'one.html')
    text = lambda of='body': browser.js(f'document.querySelector({json.dumps(of)}).innerText')
    assert 'Stage 1:' in text('#memory h3')
    browser.click('#memory button.row')
    assert 'Stage 0:' in text('#memory h3') and browser.js('document.activeElement.matches("#memory button.row")')
    browser.click('#lang')
    assert browser.js('document.documentElement.lang')=='zh-CN' and '谁持有什么' in text() and 'Who holds what' not in text()
    browser.click('#theme')
    assert browser.js('document.documentElement.dataset.theme')=='dark'
    browser.click('#lang'); browser.click('#theme')
    assert text('#changes')==''
    browser.click('#near button')
    assert 'What differs' in text('#changes') and browser.js('document.querySelectorAll("#map svg[role=img]").length')==2
    b = browser.js('DATA.plans[+document.getElementById("versus").value].ms')
    assert f'{b:,.1f}' in text('#summary') and f'{b:,.1f}' in text('#changes')
    browser.js('document.getElementById("versus").value = 0; document.getElementById("versus").dispatchEvent(new Event("change"))')
    assert text('#changes')=='' and browser.errors==[]
    browser.open(made/'two.html')
    assert '差别' in text('#changes') and browser.errors==[]

@needs_browser
def test_shows_itself_in_a_notebook(tmp_path, browser):
    p = predict(mixed(), SPEC, HardwareProfile.analytic('a100'), ModelProfile.analytic(SPEC, 'a100'))
    (tmp_path/'cell.html').write_text('<meta charset="utf-8">'+page(p, near=False)._repr_html_())
    browser.open(tmp_path/'cell.html')
    assert 'llama-7b on 8 GPUs' in browser.js('document.querySelector("iframe").contentDocument.body.innerText') and browser.errors==[]

@needs_browser
@pytest.mark.skipif(not AXE.exists(), reason='axe-core is not installed (npm ci)')
def test_accessible(made, browser):
    for name, width, dark in (('one', 1280, False), ('one', 390, True), ('two', 1280, True), ('big', 1280, False), ('bare', 1280, False)):
        browser.open(made/f'{name}.html', width, dark=dark, mobile=width<600)
        browser.js('document.querySelectorAll("details").forEach(d => { d.open = true; })')
        browser.js(AXE.read_text()+';0')
        found = browser.js('axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v => [v.impact, v.id, v.nodes.length, v.nodes[0].html.slice(0, 160)]))')
        assert found==[], found

def test_a_profile_of_memory_alone_prices_nothing(tmp_path, monkeypatch, capsys):
    "The plan is drawn all the same, and what is missing is named"
    monkeypatch.chdir(tmp_path)
    mixed().save(tmp_path/'a.json')
    HardwareProfile.analytic('a100', 1, 8).save(tmp_path)
    m = ModelProfile.analytic(SPEC, 'a100')
    replace(m, analytic=False, optimizer=(), depths=(), points=tuple(replace(p, forward_ms=None, backward_ms=None, recompute_ms=None) for p in m.points)).save(tmp_path)
    import galvatron.show as show
    monkeypatch.setattr(show, 'read_profiles', lambda *a, **k: (HardwareProfile.load(tmp_path), ModelProfile.load(tmp_path, SPEC)))
    assert main(['show', 'a.json', '--json'])==0
    got = json.loads(capsys.readouterr().out)
    assert got['plans'][0]['predicted_ms'] is None and 'was not profiled; galvatron profile-model --profile_type computation measures it' in got['notes'][0]
