"Random plans train the same model as one process does. GALVATRON_PLANS=400 and GALVATRON_SEED=1 for more of them and others; pytest -m slow for 2,000"
import os

import pytest

from equal import check_random
from galvatron.runtime.launch import run_ranks

COUNT, SEED, TOLERANCE = int(os.environ.get('GALVATRON_PLANS', 48)), os.environ.get('GALVATRON_SEED', '0'), 1e-11

def run(world, count):
    for start in range(0, count, 50):
        results = run_ranks(check_random, world, world, min(50, count-start), f'{SEED} {start}', timeout=1200, backend='gloo')
        for rank,res in enumerate(results):
            for name,errors in res.items():
                assert isinstance(errors, dict), f'world {world}, rank {rank}, plan {name}:\n{errors}'
                assert all(e<TOLERANCE for k,e in errors.items() if k!='seconds'), f'world {world}, rank {rank}, plan {name}: {errors}'

@pytest.mark.parametrize('world', [2, 4, 6, 8])
def test_random_plans(world): run(world, COUNT//4)

@pytest.mark.slow
@pytest.mark.timeout(4*3600)
@pytest.mark.parametrize('world', [2, 4, 6, 8])
def test_two_thousand_plans(world): run(world, 500)
