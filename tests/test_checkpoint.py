"Checkpoints: any plan to any plan, killed and damaged ones, failures of one rank"
import os

import pytest, torch

from galvatron.runtime.launch import run_ranks
from resume import draw, run_cases

ROUNDS = 8 if os.environ.get('GALVATRON_NIGHTLY') else 1 # times 2 models, times 3 loads each

def cases(world, kinds=('llama','gpt'), source=None):
    "Random plans for a world; each loads what the round before saved under the same number"
    out = []
    for kind in kinds:
        for i in range(ROUNDS):
            case = f'{kind}-{i}-on-{world}', kind, *draw(world, i)
            out.append((f'{kind}-{i}-on-{source}', *case) if source else case)
    return out

@pytest.fixture(scope='module')
def chain(tmp_path_factory):
    "Save on 4 ranks; load and save again on 8, on 2, and alone"
    folder, res = str(tmp_path_factory.mktemp('checkpoints')), {}
    res[4] = run_ranks(run_cases, 4, 'save_case', folder, cases(4), timeout=240, backend='gloo')
    res[8] = run_ranks(run_cases, 8, 'load_case', folder, cases(8, source=4), timeout=240, backend='gloo')
    res[2] = run_ranks(run_cases, 2, 'load_case', folder, cases(2, source=8), timeout=240, backend='gloo')
    res[1] = [run_cases('load_case', folder, cases(1, source=2))] # this process, without torch.distributed
    return res

@pytest.mark.parametrize('world', [4, 8, 2, 1])
def test_any_plan_to_any_plan(chain, world):
    for rank,res in enumerate(chain[world]):
        for name,(_,error) in res.items(): assert error is None, f'{name}, rank {rank}:\n{error}'
