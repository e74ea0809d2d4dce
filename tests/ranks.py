"Run a function on several gloo processes of this machine, with a time limit, and return what each rank returned"
import os, tempfile, time, traceback

import torch.multiprocessing as mp

def _rank(fn, rank, world, path, queue, args):
    import torch, torch.distributed as dist
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group('gloo', init_method=f'file://{path}', rank=rank, world_size=world)
    try:
        res = fn(*args)
        dist.barrier()
    except BaseException: queue.put((rank, False, traceback.format_exc()))
    else: queue.put((rank, True, res))
    queue.close()
    queue.join_thread()
    os._exit(0) # a rank whose neighbour died would wait in the group's destructor

def launch(fn, world, *args, seconds=300):
    "What `fn(*args)` returned on each of `world` ranks; AssertionError with the first traceback, and no process left, if one fails or time runs out"
    ctx = mp.get_context('spawn')
    queue, end, res = ctx.Queue(), time.monotonic()+seconds, {}
    with tempfile.TemporaryDirectory() as tmp:
        ps = [ctx.Process(target=_rank, args=(fn, r, world, f'{tmp}/store', queue, args), daemon=True) for r in range(world)]
        for p in ps: p.start()
        try:
            while len(res)<world:
                if not queue.empty() or any(p.is_alive() for p in ps):
                    try: rank,ok,value = queue.get(timeout=1)
                    except Exception: value = None
                    else:
                        assert ok, f'rank {rank}:\n{value}'
                        res[rank] = value
                else: raise AssertionError(f'ranks {sorted(set(range(world))-set(res))} ended without a result, exit codes {[p.exitcode for p in ps]}')
                assert time.monotonic()<end, f'ranks {sorted(set(range(world))-set(res))} not ready after {seconds} s'
        finally:
            for p in ps:
                if p.is_alive() and len(res)<world: p.kill()
                p.join(10)
    return [res[r] for r in range(world)]
