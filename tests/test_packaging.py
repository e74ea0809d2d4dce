"What is shipped: wheel and source archive hold what an installed Galvatron needs"
import os, subprocess, sys, tarfile, zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
VERSION = (ini := ConfigParser(delimiters=['=']), ini.read(ROOT/'settings.ini'))[0]['DEFAULT']['version']

@pytest.fixture(scope='module')
def shipped(tmp_path_factory):
    "Names in the wheel and in the source archive; the wheel is made from the unpacked archive, as an installer would"
    from test_project import copy_repo
    tmp = tmp_path_factory.mktemp('ship')
    def build(where, kind):
        r = subprocess.run([sys.executable, 'setup.py', '-q', kind, '-d', str(tmp/'dist')], cwd=where, capture_output=True, text=True, env=os.environ|{'PYTHONWARNINGS':'ignore'})
        assert r.returncode==0, r.stderr[-2000:]
    build(copy_repo(tmp), 'sdist')
    sdist, = (tmp/'dist').glob('*.tar.gz')
    with tarfile.open(sdist) as t: t.extractall(tmp, filter='data')
    build(tmp/f'galvatron-{VERSION}', 'bdist_wheel')
    wheel, = (tmp/'dist').glob('*.whl')
    return wheel, sdist

def test_wheel_holds_the_package(shipped):
    there = set(zipfile.ZipFile(shipped[0]).namelist())
    ours = {p.relative_to(ROOT).as_posix() for p in (ROOT/'galvatron').rglob('*') if p.is_file() and '__pycache__' not in p.parts}
    assert ours-there==set() and 'galvatron/py.typed' in there
    assert not [n for n in there if n.startswith(('tests/','tools/','nbs/'))]

def test_archive_can_be_built(shipped):
    with tarfile.open(shipped[1]) as t: names = {n.partition('/')[2] for n in t.getnames()}
    assert {'settings.ini','setup.py','README.md','LICENSE'}<=names

def test_one_version(shipped):
    import galvatron
    meta = zipfile.ZipFile(shipped[0]).read(f'galvatron-{VERSION}.dist-info/METADATA').decode()
    assert galvatron.__version__==VERSION and f'\nVersion: {VERSION}\n' in meta
