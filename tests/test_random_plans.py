"Random plans train the same model as one process does. GALVATRON_PLANS=2000 and GALVATRON_SEED=... for more of them and others"
import os

import pytest

from equal import check_random
from galvatron.runtime.launch import run_ranks

COUNT, SEED, TOLERANCE = int(os.environ.get('GALVATRON_PLANS', 48)), os.environ.get('GALVATRON_SEED', '0'), 1e-11

@pytest.mark.parametrize('world', [2, 4, 6, 8])
def test_random_plans(world):
    count = COUNT//4
    for start in range(0, count, 50):
        results = run_ranks(check_random, world, world, min(50, count-start), f'{SEED} {start}', timeout=1200, backend='gloo')
        for rank,res in enumerate(results):
            for name,errors in res.items():
                assert isinstance(errors, dict), f'world {world}, rank {rank}, plan {name}:\n{errors}'
                assert all(e<TOLERANCE for k,e in errors.items() if k!='seconds'), f'world {world}, rank {rank}, plan {name}: {errors}'
