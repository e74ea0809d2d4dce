"Launching: results and failures come back, hangs end, nothing is left behind"
import os, subprocess, sys, time

import pytest

from galvatron.plan import GalvatronError
from galvatron.runtime.launch import RankError, run_ranks, torchrun

pytestmark = pytest.mark.usefixtures('new_processes')

def world(tag):
    import torch, torch.distributed as dist
    x = torch.ones(3)*dist.get_rank()
    dist.all_reduce(x)
    print('hello from', dist.get_rank())
    return dist.get_rank(), dist.get_world_size(), x.tolist(), tag

def one_fails(bad):
    import torch, torch.distributed as dist
    if dist.get_rank()==bad: raise KeyError('the reason')
    dist.all_reduce(torch.ones(1)) # waits for the one that failed

def hangs():
    import torch, torch.distributed as dist
    subprocess.Popen(['sleep', '300']) # a grandchild
    if dist.get_rank(): time.sleep(300)
    dist.all_reduce(torch.ones(1))

def dies(): os._exit(0) if os.environ['RANK']=='1' else time.sleep(300)

def children():
    return {l.split()[0] for l in subprocess.run(['ps', '-eo', 'pid,sid,args'], capture_output=True, text=True).stdout.splitlines() if 'sleep 300' in l}

def test_results_in_rank_order(capfd):
    assert run_ranks(world, 3, 'x')==[(r, 3, [3.]*3, 'x') for r in range(3)]
    assert 'hello from 0' in capfd.readouterr().out

def test_the_first_failure_is_reported_and_the_rest_ends():
    t = time.time()
    with pytest.raises(RankError, match="rank 1 of 2 failed: KeyError: 'the reason'") as e: run_ranks(one_fails, 2, 1)
    assert e.value.rank==1 and 'one_fails' in e.value.traceback and time.time()-t<60

def test_a_hang_ends_at_the_limit_and_says_where():
    before, t = children(), time.time()
    with pytest.raises(TimeoutError, match='hangs'): run_ranks(hangs, 2, timeout=16)
    assert time.time()-t<28 and not children()-before

def test_a_rank_that_disappears_is_a_failure():
    with pytest.raises(RankError, match='died without an error'): run_ranks(dies, 2, init=False, timeout=60)

def test_functions_that_cannot_be_imported_are_refused_at_once():
    with pytest.raises(GalvatronError, match='cannot import'): run_ranks(lambda: 1, 2)
    code = 'from galvatron.runtime.launch import run_ranks\ndef f(): pass\nrun_ranks(f, 2)'
    r = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60)
    assert r.returncode and 'defined in __main__' in r.stderr

def test_torchrun_ends_at_the_limit(tmp_path):
    (tmp_path/'slow_module.py').write_text('import time, subprocess\nsubprocess.Popen(["sleep", "300"])\ntime.sleep(300)\n')
    before, t = children(), time.time()
    old = os.environ.get('PYTHONPATH', '')
    os.environ['PYTHONPATH'] = f'{tmp_path}{os.pathsep}{old}'
    try: assert torchrun([], 2, timeout=8, module='slow_module')==124
    finally: os.environ['PYTHONPATH'] = old
    assert time.time()-t<30 and not children()-before

def test_torchrun_passes_on_the_exit_code_without_noise(tmp_path, capfd):
    (tmp_path/'refusing_module.py').write_text('import os, sys, time\nif os.environ["RANK"]=="1": print("galvatron: error: no", file=sys.stderr); sys.exit(2)\ntime.sleep(300)\n')
    old, t = os.environ.get('PYTHONPATH', ''), time.time()
    os.environ['PYTHONPATH'] = f'{tmp_path}{os.pathsep}{old}'
    try: assert torchrun([], 2, timeout=60, module='refusing_module')==2
    finally: os.environ['PYTHONPATH'] = old
    assert time.time()-t<40 and capfd.readouterr().err.strip()=='galvatron: error: no'

def test_the_rank_that_was_killed_is_named(tmp_path, capfd):
    "Not the ones that lost their connection to it, though they have lower numbers and end at the same time"
    (tmp_path/'killed_module.py').write_text('import os, pathlib, sys, time\nr, gone = os.environ["RANK"], pathlib.Path(__file__).with_name("gone")\n'
        'if r=="2": gone.touch(); os.kill(os.getpid(), 9)\nwhile not gone.exists(): time.sleep(.001)\nsys.exit(1)\n')
    old = os.environ.get('PYTHONPATH', '')
    os.environ['PYTHONPATH'] = f'{tmp_path}{os.pathsep}{old}'
    try: assert torchrun([], 3, timeout=60, module='killed_module')==137
    finally: os.environ['PYTHONPATH'] = old
    assert capfd.readouterr().err.strip()=='galvatron: rank 2 ended by signal SIGKILL, as when memory runs out; all ranks ended'

@pytest.mark.slow
def test_a_rank_that_cannot_be_asked_to_end_is_killed(tmp_path):
    "As one is whose GPU waits for a message of the rank that failed"
    (tmp_path/'deaf_module.py').write_text('import os, signal, sys, time\nif os.environ["RANK"]=="1": time.sleep(3); sys.exit(1)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass\n')
    before, old, t = children(), os.environ.get('PYTHONPATH', ''), time.time()
    os.environ['PYTHONPATH'] = f'{tmp_path}{os.pathsep}{old}'
    try: assert torchrun([], 2, timeout=300, module='deaf_module')==1
    finally: os.environ['PYTHONPATH'] = old
    print(f'{time.time()-t:.0f} s')
    assert 30<time.time()-t<60 and not children()-before
