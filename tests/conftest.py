"""Shared by all tests: launches of `run_ranks` fork from one process (nursery.py), where that is the same as starting anew;
the whole suite runs in several processes, a file or a page in one of them"""
import json, os, select, socket, subprocess, sys
from pathlib import Path

import pytest

from galvatron.runtime import launch

os.environ.setdefault('OMP_NUM_THREADS', '1') # as launches set it: the processes of the suite share the cores already
HERE = 'pidfd_open' in dir(os) and not list(Path('/dev').glob('nvidia[0-9]*')) # a forked process cannot use a GPU if its parent has touched it

class Job:
    "What `run_ranks` needs of a process that another one forked"
    def __init__(self, pid):
        self.pid = pid
        try: self.fd = os.pidfd_open(pid)
        except ProcessLookupError: self.fd = None               # it has ended
    def wait(self, timeout=None):
        if self.fd is None: return
        if not select.select([self.fd], [], [], timeout)[0]: raise subprocess.TimeoutExpired('job', timeout)
        os.close(self.fd)
        self.fd = None

class Nursery:
    "Starts the process on first use; test processes that were started later share it"
    process, known = None, 'GALVATRON_TEST_NURSERY'
    def start(self):
        os.environ[self.known] = f'galvatron-nursery-{os.getpid()}-{os.urandom(4).hex()}'
        env = dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        with socket.socket(socket.AF_UNIX) as door:
            door.bind('\0'+os.environ[self.known]) # of no folder
            door.listen(64)
            self.process = subprocess.Popen([sys.executable, Path(__file__).with_name('nursery.py')], env=env, stdin=door)
    def ask(self, order):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect('\0'+os.environ[self.known])
            s.sendall(json.dumps(order).encode()+b'\n')
            return Job(int(s.makefile().readline()))
    def __call__(self, job, env):
        if env.get('OMP_NUM_THREADS')!='1': return spawn(job, env)      # read at import
        order = dict(job=str(job), env=env, cwd=os.getcwd())
        try: return self.ask(order)
        except (KeyError, OSError, ValueError): self.start() # there is none yet, or it was lost
        return self.ask(order)
    def end(self):
        if self.process:
            self.process.terminate()
            self.process.wait(30)

spawn, nursery = launch._spawn, Nursery()

@pytest.fixture(scope='session', autouse=True)
def forked_launches():
    if HERE: launch._spawn = nursery
    yield
    launch._spawn = spawn

def pytest_unconfigure(): nursery.end()

@pytest.fixture
def new_processes(monkeypatch):
    "Launches start as users' do"
    monkeypatch.setattr(launch, '_spawn', spawn)

@pytest.fixture(scope='session')
def four():
    "One run of two dozen plans on four processes: errors against one process, and the messages of a step"
    from equal import check_all
    from test_equal import FOUR
    return launch.run_ranks(check_all, 4, FOUR, count=True, timeout=300, backend='gloo')

@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    "Two to four processes for the whole suite; none for a part of it, nor where there is a GPU to share"
    if config.option.file_or_dir or config.option.keyword or not HERE: return 0
    nursery.start()
    return min(4, max(2, len(os.sched_getaffinity(0))))

def pytest_collection_modifyitems(items):
    "Pages go last: they are short, and whichever process is done early takes the next"
    items.sort(key=lambda i: i.path.name=='test_notebooks.py')

@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling
    class Scheduler(LoadScopeScheduling):
        "By file, as most have something that is made once; pages one by one"
        def _split_scope(self, nodeid):
            if 'test_runs[' in nodeid: return nodeid
            file = nodeid.partition('::')[0]
            return 'four ranks' if file.endswith(('test_equal.py', 'test_cost.py')) else file # these two share a launch
    config.option.loadscopereorder = False
    return Scheduler(config, log)
