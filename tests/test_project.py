"The project as a whole: README and site follow the notebooks, the package is lint-free, the pages keep the house's habits"
import os, re, shutil, subprocess, sys
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser

ROOT = Path(__file__).resolve().parent.parent
AXE = ROOT/'node_modules/axe-core/axe.min.js'

def run(*cmd, **kw):
    "Run a tool of this repository with this Python; its output is shown when it fails"
    env = {k:v for k,v in os.environ.items() if k!='IN_TEST'}
    p = subprocess.run(cmd, cwd=kw.pop('cwd', ROOT), env=env, text=True, capture_output=True, timeout=500, **kw)
    assert p.returncode==0, f'{" ".join(map(str, cmd))}\n{p.stdout[-4000:]}\n{p.stderr[-4000:]}'
    return p.stdout

def copy_repo(dest):
    "A copy to build in, so that a test leaves the checkout as it was"
    ignore = shutil.ignore_patterns('.git', '.venv', '_docs', '_proc', '.nb', '__pycache__', '*.egg-info', 'shared')
    return Path(shutil.copytree(ROOT, dest/'repo', symlinks=True, ignore=ignore))

@pytest.fixture(scope='module')
def copy(tmp_path_factory): return copy_repo(tmp_path_factory.mktemp('site'))

def test_readme_in_sync(copy):
    run(sys.executable, 'tools/readme.py', cwd=copy)
    assert (copy/'README.md').read_text()==(ROOT/'README.md').read_text(), 'run: python tools/readme.py'

def test_docs_build_without_broken_links_and_can_be_read_by_all(copy):
    out = run(sys.executable, 'tools/docs.py', cwd=copy)          # the pages that the README's test has processed, if it ran
    assert 'pages' in out
    assert '*args' not in re.sub('<[^>]*>', '', (copy/'_docs/cost.communication.html').read_text()) # the fields of a named tuple are its signature
    assert ' 0 broken' in run(sys.executable, 'tools/links.py', '_docs', cwd=copy)
    assert ' 0 faults' in run(sys.executable, 'tools/accessible.py', '_docs', cwd=copy)

PAGES = 'index', 'plan', 'cost.explore', 'show', 'guide/search', 'guide/zh/search', 'tutorials/quick_start'

@pytest.mark.skipif(not CHROMIUM, reason='no chromium is installed (apt-get install chromium)')
@pytest.mark.skipif(not AXE.exists(), reason='axe-core is not installed (npm ci)')
def test_site_is_accessible_and_fits_a_phone(copy):
    site = copy/'_docs'
    if not site.exists(): run(sys.executable, 'tools/docs.py', cwd=copy)
    with Browser() as b:
        for page in PAGES:
            for width in 1280, 390:
                b.open(site/f'{page}.html', width, mobile=width<600)
                assert b.js('document.documentElement.scrollWidth')==width, page
                b.js(AXE.read_text()+';0')
                found = b.js('axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v => [v.impact, v.id, v.nodes[0].html.slice(0, 160)]))')
                assert not [v for v in found if v[0] in ('serious', 'critical')], (page, width, found)

def test_quarto_file_is_one():
    link = ROOT/'nbs/_quarto.yml'
    assert link.is_symlink() and link.resolve()==ROOT/'_quarto.yml'

def test_ruff(): run(sys.executable, '-m', 'ruff', 'check', 'galvatron', 'tools', 'tests')

def test_notebook_habits(): run(sys.executable, 'tools/nb_stats.py')

def test_contributing_shows_where_the_notebooks_stand():
    "The figures there are those of today, but for little changes; the share of names with an example does not fall"
    sys.path.insert(0, str(ROOT/'tools'))
    from nb_stats import MARK, WANTED, measured, summary
    now = summary(measured(str(ROOT/'nbs')))
    shown = dict(re.findall(r'^\| (.+?) \| ([\d.]+) \|', (ROOT/'CONTRIBUTING.md').read_text().split(MARK)[1], re.M))
    assert set(shown)==set(now)==set(WANTED)
    for k,v in now.items(): assert abs(float(shown[k])-v)<=max(2, .1*v), f'{k}: {v} now; run: python tools/nb_stats.py --write'
    assert now['lines of an export cell, median']<=12 and now['words of prose in a module page, mean']>=500 and not now['module pages without a visible assert']
    assert now['public names used in a visible cell of their page, %']>=float(shown['public names used in a visible cell of their page, %'])-1

BAD = '''<html><head><title></title></head><body><main><h2>a</h2><img src="x.png"><input id="q"><a href="b"><i></i></a><p id="q"></p><div tabindex="3"></div></main></body></html>'''
GOOD = '''<html lang="en"><head><title>t</title></head><body><nav><h2>menu</h2></nav><main><h1>a</h1><h2>b</h2><img src="x.png" alt=""><label>Search <input></label><label for="q">n</label><input id="q"><a href="b"><img alt="home"></a></main></body></html>'''

def test_what_tells_bad_pages_from_good_ones():
    "`tools/accessible.py` runs where no browser is installed; axe, where there is one, sees more"
    sys.path.insert(0, str(ROOT/'tools'))
    from accessible import Page, contrast, pale, pale_themes
    assert Page(GOOD).faults==[]
    said = '; '.join(Page(BAD).faults)
    for part in 'no language', 'no title', 'h2 after h0', 'without alt', 'without a label', 'a without words', 'q twice', '0 main headings', 'Tab key': assert part in said, part
    assert contrast('#000', '#fff')==21 and pale('p { color: #999; background-color: #999 }')==['#999 on #ffffff: 2.8, less than 4.5']
    css = (ROOT/'galvatron/page/page.css').read_text()
    assert pale_themes(css)==[] and len(pale_themes(css.replace('#566172', '#999999')))==2
