"Shared by all tests: launches of `run_ranks` fork from one process (nursery.py), where that is the same as starting anew"
import json, os, select, subprocess, sys
from pathlib import Path

import pytest

from galvatron.runtime import launch

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
    "Starts the process on first use"
    process = None
    def __call__(self, job, env):
        if env.get('OMP_NUM_THREADS')!='1': return spawn(job, env)      # read at import
        if not self.process or self.process.poll() is not None:
            start = dict(os.environ, OMP_NUM_THREADS='1', PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
            self.process = subprocess.Popen([sys.executable, Path(__file__).with_name('nursery.py')], env=start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        print(json.dumps(dict(job=str(job), env=env, cwd=os.getcwd())), file=self.process.stdin, flush=True)
        return Job(int(self.process.stdout.readline()))

spawn = launch._spawn

@pytest.fixture(scope='session', autouse=True)
def nursery():
    "Not where there is a GPU: a forked process cannot use it if its parent has touched it"
    if list(Path('/dev').glob('nvidia[0-9]*')) or not hasattr(os, 'pidfd_open'):
        yield
        return
    launch._spawn = made = Nursery()
    yield
    launch._spawn = spawn
    if made.process:
        made.process.stdin.close()
        made.process.wait(30)

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
