"Train on four ranks, in two stages with two micro-batches, with a save after every step, kill one of them at a random moment, start again; python kill.py FOLDER KILLS [SEED] prints a JSON report"
import faulthandler, hashlib, json, os, random, signal, sys, time
from datetime import timedelta
from pathlib import Path

import torch, torch.distributed as dist

from galvatron.checkpoint.distributed import Checkpointer, show
from galvatron.checkpoint.folder import iterations
from galvatron.plan import LayerStrategy, Plan, RunOptions
from resume import BSZ, make, train, views

RANKS = 4
PLAN = Plan((LayerStrategy(dp_type='zero3'), LayerStrategy(2), LayerStrategy(), LayerStrategy(dp_type='zero3')), pp_deg=2, pipeline_type='pipedream_flush', chunks=2, global_bsz=BSZ)

def rank_main(rank, folder, job, steps, asynchronous):
    "Body of a rank, forked: ends the process"
    code = 1
    try:
        torch.set_num_threads(1)
        faulthandler.register(signal.SIGUSR1, file=open(job/f'stack{rank}', 'w'), all_threads=True)
        dist.init_process_group('gloo', init_method=f'file://{job}/store', rank=rank, world_size=RANKS, timeout=timedelta(seconds=30))
        model, optimizer = make('gpt', PLAN, RunOptions('fp64'))
        saver = Checkpointer(folder, model, optimizer, keep_last=3, asynchronous=asynchronous)
        start = saver.load().iteration if iterations(folder) else 0
        (job/f'started{rank}').touch()
        for step in range(start, steps):
            train(model, optimizer, [step])
            if rank==0: (job/'done').write_text(str(step+1))
            saver.save(step+1)
            if rank==0 and not asynchronous: (job/'saved').write_text(str(step+1))
        saver.wait()
        digest = hashlib.sha256(b''.join(v.contiguous().numpy().tobytes() for _,v in sorted(views(model, optimizer).items(), key=lambda o: str(o[0])))).hexdigest()
        (job/f'digest{rank}').write_text(digest)
        code = 0
    except BaseException as e: (job/f'error{rank}').write_text(f'{type(e).__name__}: {e}')
    finally: os._exit(code)

def run(folder, job, steps, asynchronous=False, kill=None):
    "One job; `kill` draws when and whom. Returns exit codes, and seconds that the survivor needed to notice"
    job.mkdir(parents=True)
    pids = []
    for rank in range(RANKS):
        pid = os.fork()
        if pid==0: rank_main(rank, folder, job, steps, asynchronous)
        pids.append(pid)
    if kill:
        while not all((job/f'started{r}').exists() or (job/f'error{r}').exists() for r in range(RANKS)): time.sleep(.01)
        newest = lambda: max(iterations(folder), default=0)
        goal, end = newest()+kill.randrange(4), time.monotonic()+20
        while newest()<goal and time.monotonic()<end: time.sleep(.002)
        time.sleep(kill.uniform(0, .3))
        os.kill(pids[kill.randrange(RANKS)], signal.SIGKILL)
    start, codes = time.monotonic(), {}
    while len(codes)<RANKS and time.monotonic()-start<60:
        for p in pids:
            if p not in codes and (got := os.waitpid(p, os.WNOHANG))[0]: codes[p] = got[1]
        time.sleep(.01)
    for p in pids:
        if p not in codes:
            os.kill(p, signal.SIGUSR1)                          # where it hangs, in stackN
            time.sleep(.5)
            os.kill(p, signal.SIGKILL)
            os.waitpid(p, 0)
            codes[p] = 'hung'
    return list(codes.values()), time.monotonic()-start

def number(path): return int(path.read_text() or 0) if path.exists() else 0

def main(root, kills, seed=0):
    root, draw, steps, report = Path(root), random.Random(seed), 1000, []
    for i in range(kills):
        job, asynchronous = root/f'job{i}', i%3==2
        codes, noticed = run(root/'run', job, steps, asynchronous, draw)
        found = iterations(root/'run')
        saved, done = number(job/'saved'), number(job/'done')
        problems = sum((r['problems'] for r in show(root/'run', contents=True)), []) if found else []
        report.append(dict(codes=codes, noticed=noticed, newest=max(found, default=0), saved=saved, lost=done-max(found, default=0) if done else 0, asynchronous=asynchronous, problems=problems, stacks={f.name: f.read_text() for f in job.glob('stack*') if f.stat().st_size}))
    steps = max(iterations(root/'run'))+2
    for name in 'run', 'whole': report.append(dict(codes=run(root/name, root/f'end-{name}', steps)[0], digests=[(root/f'end-{name}'/f'digest{r}').read_text() for r in range(RANKS)]))
    return report

if __name__=='__main__': print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:]))))
