"""How a layer's time changes while a GPU gets warm: after a rest, forward and backward again and again, with the clock and the power beside them

    python tools/settling.py                                                        # two layers, about 40 s on a GPU
    python tools/settling.py --cases 'llama-7b 4x4096 eager' --seconds 8 --rest 4   # one; cases as in steps.py
    python tools/settling.py --tiny                                                 # the same code on a CPU

A profile that takes its points before the clock has settled makes predictions too short, and a run of few steps is too short for one that took them after.
"""
import argparse, json, statistics, subprocess, sys, time
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from steps import Case

@contextmanager
def clocks(device):
    "Yields a list that gets a dict of the GPU's clock, power and temperature for each quarter of a second"
    seen, p = [], None
    if device.type=='cuda':
        p = subprocess.Popen(['nvidia-smi', f'--id={device.index or 0}', '--query-gpu=clocks.sm,power.draw,temperature.gpu', '--format=csv,noheader,nounits', '-lms', '250'], stdout=subprocess.PIPE, text=True)
    try: yield seen
    finally:
        if p:
            p.terminate()
            for line in p.communicate()[0].splitlines():
                try: seen.append(dict(zip(('mhz', 'watt', 'celsius'), map(float, line.split(',')))))
                except ValueError: pass # not supported, or cut off

def series(case, device, seconds, rest):
    "Rows of (seconds since the rest, ms of forward and backward) of a layer, and the clocks seen on the way"
    import torch
    from galvatron.profile.hardware import once_ms
    from galvatron.profile.model import Bench, Task, build
    task = Task('tp', 1, case.batch, (case.spec.seq,), depths=((1,),))
    with build([task], case.spec, case.options, device) as r:
        calls = Bench(r, task.batch, task.seqs).beside(0)
        ms = sum(once_ms(calls*2, device)[4:])                       # compiled now
        if device.type=='cuda': torch.cuda.synchronize()
        time.sleep(rest)
        begin, rows, n = time.perf_counter(), [], max(1, int(100/max(ms, 1e-3)))
        with clocks(device) as seen:
            while (now := time.perf_counter()-begin)<seconds:
                got = once_ms(calls*n, device)                       # a tenth of a second
                rows.append((now, statistics.median(sum(got[i:i+4])/2 for i in range(0, len(got), 4))))
    return rows, seen

def main():
    import torch
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--cases', default='llama-7b 4x4096 eager; llama-1b 4x4096')
    ap.add_argument('--seconds', type=float, default=8.)
    ap.add_argument('--rest', type=float, default=4.)
    ap.add_argument('--out', default='', help='JSON')
    ap.add_argument('--tiny', action='store_true')
    args = ap.parse_args()
    device, out = torch.device('cuda', 0) if torch.cuda.is_available() else torch.device('cpu'), []
    for case in (Case.parse(t.strip(), args.tiny) for t in args.cases.split(';')):
        rows, seen = series(case, device, args.seconds, args.rest)
        last = statistics.median(ms for at,ms in rows if at>=args.seconds/2)
        print(f'{case}: settled at {last:.3f} ms forward and backward; before, against that:')
        for a,b in ((0., .2), (.2, .5), (.5, 1.), (1., 2.), (2., 4.), (4., 8.)):
            if some := [ms for at,ms in rows if a<=at<b]: print(f'  {a:3.1f} to {b:3.1f} s: {statistics.median(some)/last-1:+.1%}, {min(some)/last-1:+.1%} to {max(some)/last-1:+.1%}')
        print('  clock, power, temperature:', *(f"{c['mhz']:.0f} MHz {c['watt']:.0f} W {c['celsius']:.0f} C;" for c in seen[::4]))
        out.append(dict(case=str(case), rows=rows, clocks=seen))
        if args.out: Path(args.out).write_text(json.dumps(out))

if __name__=='__main__': main()
