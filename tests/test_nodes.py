"Several nodes: network namespaces joined by a cable, a pipeline across it, equal to one process; and nodes of one address, of which one fails"
import json, os, shutil, subprocess, sys, time

import pytest

from galvatron.cli import main
from galvatron.runtime.launch import free_port

A, B = '10.77.0.1', '10.77.0.2'
MODEL = '--model_type llama_hf --hidden_size 32 --num_attention_heads 4 --num_hidden_layers 4 --seq_length 32 --vocab_size 257 --mixed_precision fp64 --global_train_batch_size 8'.split()

def sh(*words): return subprocess.run(words, check=True, capture_output=True, text=True, timeout=30).stdout

@pytest.fixture(scope='module')
def hosts():
    "Names of two network namespaces with addresses A and B"
    if not shutil.which('ip') or os.geteuid(): pytest.skip('network namespaces need Linux, root and iproute2')
    names = [f'gv{os.getpid()}{c}' for c in 'ab']
    ends = [f'v{os.getpid()}{c}' for c in 'ab']
    try:
        try:
            for n in names: sh('ip', 'netns', 'add', n)
            sh('ip', 'link', 'add', ends[0], 'type', 'veth', 'peer', 'name', ends[1])
            for n,e,addr in zip(names, ends, (A, B)):
                sh('ip', 'link', 'set', e, 'netns', n)
                sh('ip', '-n', n, 'addr', 'add', f'{addr}/24', 'dev', e)
                for dev in (e, 'lo'): sh('ip', '-n', n, 'link', 'set', dev, 'up')
        except (subprocess.CalledProcessError, OSError) as e: pytest.skip(f'network namespaces are not allowed here: {getattr(e, "stderr", e)}')
        yield names
    finally:
        for n in names: subprocess.run(['ip', 'netns', 'del', n], capture_output=True)

def words(folder, text):
    return [*MODEL, '--data-path', str(text), '--train_iters', '5', '--lr', '1e-2', '--eval_iters', '0', '--log_dir', str(folder), '--time_limit', '150']

def start(folder, text, *more, host, env):
    cmd = ['ip', 'netns', 'exec', host, sys.executable, '-m', 'galvatron', 'train', *words(folder, text), *map(str, more)]
    return subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ|env)

def losses(folder): return [r['loss'] for r in map(json.loads, open(folder/'metrics.jsonl')) if 'loss' in r] # the last line is the summary

def test_a_pipeline_across_two_hosts(hosts, tmp_path):
    from galvatron.data.preprocess import write_pydoc_topics
    text = tmp_path/'topics'
    write_pydoc_topics(text)
    assert main(['train', *words(tmp_path/'one', text), '--nproc', '1'])==0
    # the variables of the user guide, on each node
    env = lambda i: dict(NUM_NODES='2', NUM_GPUS_PER_NODE='2', NODE_RANK=str(i), MASTER_ADDR=A, MASTER_PORT='29571')
    nodes = [start(tmp_path/'two', text, '--pp_deg', 2, '--chunks', 4, '--pipeline_type', 'pipedream_flush', '--global_tp_deg', 2, host=h, env=env(i)) for i,h in enumerate(hosts)]
    codes = [n.wait(200) for n in nodes]
    assert codes==[0, 0], '\n'.join(n.stdout.read() for n in nodes)
    assert losses(tmp_path/'two')==pytest.approx(losses(tmp_path/'one'), rel=1e-12) and len(losses(tmp_path/'one'))==5

EARLY = """import os, time
node, how = os.environ['NODE_RANK'], os.environ['FAILS'].split()
if node==how[0] and os.environ['LOCAL_RANK']=='1':
    if how[1]=='import': import no_such_module
    os.kill(os.getppid() if how[1]=='launcher' else os.getpid(), 9)
from galvatron.runtime.launch import init_distributed
init_distributed('gloo') # waits for the rank that is gone
"""
LAUNCH = "import os, sys; from galvatron.runtime.launch import torchrun; i = int(os.environ['NODE_RANK']); sys.exit(torchrun([], 2, nnodes=2, node_rank=i, master_addr='127.0.0.1', master_port=int(sys.argv[1]), module='early'))"

def test_ranks_are_those_of_the_numbers_that_nodes_were_given(tmp_path):
    "Though node 1 starts first, and has the lower process id at the same address"
    (tmp_path/'early.py').write_text("import os; os.write(1, ' '.join([*map(os.environ.get, ('NODE_RANK', 'RANK', 'WORLD_SIZE'))]).encode()+b'\\n')") # at once: two ranks share a pipe
    port, env = str(free_port()), os.environ|dict(PYTHONPATH=os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    nodes = []
    try:
        for i in (1, 0):
            nodes.append(subprocess.Popen([sys.executable, '-c', LAUNCH, port], env=env|{'NODE_RANK': str(i)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            if i: time.sleep(1)
        said = [n.communicate(timeout=60) for n in nodes]
    finally:
        for n in nodes: n.kill()
    assert [n.returncode for n in nodes]==[0, 0] and [sorted(out.split('\n')[:-1]) for out,_ in said]==[['1 2 4', '1 3 4'], ['0 0 4', '0 1 4']], said

def of_run(mark):
    "Process ids that carry a mark in their environment"
    def env(pid):
        try: return open(f'/proc/{pid}/environ', 'rb').read()
        except OSError: return b''
    return [int(p) for p in os.listdir('/proc') if p.isdigit() and mark.encode() in env(p)]

def one_fails(folder, how, limit):
    "Two nodes, whose ranks fail as told before there is a process group: exit codes, what they say, seconds"
    (folder/'early.py').write_text(EARLY)
    port, t, nodes = str(free_port()), time.time(), []
    env = os.environ|dict(FAILS=how, PYTHONPATH=os.pathsep.join([str(folder), *filter(None, sys.path)]), RUN=str(folder))
    try:
        for i in range(2):
            with open(folder/f'{i}.out', 'w') as out:
                nodes.append(subprocess.Popen([sys.executable, '-c', LAUNCH, port], env=env|{'NODE_RANK': str(i)}, stdout=out, stderr=out))
        codes = [n.wait(max(1, t+limit-time.time())) for n in nodes]
        seconds = time.time()-t
        while of_run(str(folder)) and time.time()<t+limit: time.sleep(.2)
        assert not of_run(str(folder))
        return codes, [(folder/f'{i}.out').read_text() for i in range(2)], seconds
    finally:
        for pid in of_run(str(folder)): os.kill(pid, 9)
        for n in nodes: n.kill(); n.wait()

@pytest.mark.parametrize('fails,how,code,why', [(1, 'import', 1, 'ended with exit code 1'), (0, 'kill', 137, 'ended by signal SIGKILL, as when memory runs out')])
def test_a_rank_that_fails_before_the_group_ends_all_nodes(tmp_path, fails, how, code, why):
    codes, out, seconds = one_fails(tmp_path, f'{fails} {how}', 60)
    print(f'{seconds:.1f} s')
    assert codes==[code, code], out
    own, other = out[fails].splitlines()[-1], out[1-fails].splitlines()
    assert own.startswith('galvatron: rank') and own.endswith(f'{why}; all ranks ended')
    assert len(other)==2 and other[1].startswith(f'galvatron: node {fails} (') and 'has ended: rank' in other[1] and other[1].endswith(f'{why}; see its output; all ranks ended')

@pytest.mark.slow
def test_a_node_that_is_killed_whole_is_missed(tmp_path):
    codes, out, seconds = one_fails(tmp_path, '1 launcher', 120)
    print(f'{seconds:.1f} s')
    assert codes==[1, 137] and 'node 1 (' in out[0] and 'it has not been heard of for 45 s' in out[0] and 'SIGKILL' in out[1] and seconds<90
