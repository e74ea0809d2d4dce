"Two hosts: network namespaces joined by a cable, a pipeline across it, equal to one process"
import json, os, shutil, subprocess, sys

import pytest

from galvatron.cli import main

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

def losses(folder): return [r['loss'] for r in map(json.loads, open(folder/'metrics.jsonl'))]

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
