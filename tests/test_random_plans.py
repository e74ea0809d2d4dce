"Random plans train the same model as one process does. GALVATRON_PLANS=400 for twice as many of them and GALVATRON_SEED=1 for others; pytest -m slow for 2,000"
import os

import pytest

from equal import assert_equal, check_random
from galvatron.runtime.launch import run_ranks

COUNT = {2:112, 4:60, 6:14, 8:14} # ranks: plans, 200 in all; a plan costs as much on every rank
TOTAL, SEED, TOLERANCE = int(os.environ.get('GALVATRON_PLANS', 200)), os.environ.get('GALVATRON_SEED', '0'), 1e-11

def run(world, count):
    for start in range(0, count, 60):
        results = run_ranks(check_random, world, world, min(60, count-start), f'{SEED} {start}', timeout=1200, backend='gloo')
        assert len(results[0])==min(60, count-start) or isinstance(list(results[0].values())[-1], str)
        assert_equal(results, results[0], TOLERANCE)

@pytest.mark.parametrize('world', COUNT)
def test_random_plans(world): run(world, round(COUNT[world]*TOTAL/sum(COUNT.values())))

@pytest.mark.slow
@pytest.mark.timeout(4*3600)
@pytest.mark.parametrize('world', COUNT)
def test_two_thousand_plans(world): run(world, 500)
