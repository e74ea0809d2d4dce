"Random plans train the same model as one process does. GALVATRON_PLANS=400 and GALVATRON_SEED=1 for more of them and others; pytest -m slow for 2,000"
import os

import pytest

from equal import assert_equal, check_random
from galvatron.runtime.launch import run_ranks

COUNT, SEED, TOLERANCE = int(os.environ.get('GALVATRON_PLANS', 48)), os.environ.get('GALVATRON_SEED', '0'), 1e-11

def run(world, count):
    for start in range(0, count, 50):
        results = run_ranks(check_random, world, world, min(50, count-start), f'{SEED} {start}', timeout=1200, backend='gloo')
        assert len(results[0])==min(50, count-start) or isinstance(list(results[0].values())[-1], str)
        assert_equal(results, results[0], TOLERANCE)

@pytest.mark.parametrize('world', [2, 4, 6, 8])
def test_random_plans(world): run(world, COUNT//4)

@pytest.mark.slow
@pytest.mark.timeout(4*3600)
@pytest.mark.parametrize('world', [2, 4, 6, 8])
def test_two_thousand_plans(world): run(world, 500)
