"""Profile the model zoo on one GPU within a time limit, and pack or unpack what was measured

    python tools/profile_h200.py --out DIR [--minutes 9] [--models llama-7b gpt-6.7b] [--compile]     measure; leaves DIR/profiles.tar.gz, rewritten after each model
    python tools/profile_h200.py --out DIR --missing [--minutes 1.6] [--models ...] [--compare ...]    only the widths that shipped files lack, and layers alone in turns with whole models, of models that never were
    python tools/profile_h200.py --out DIR --hardware                                                   collectives of all visible GPUs as well
    python tools/profile_h200.py --out DIR --tiny --device cpu                                          the same steps on toy shapes
    python tools/profile_h200.py --unpack FILE [--keep]                                                 put the files where the package ships them; what only the shipped files hold is refused, or kept beside it
"""
import argparse, os, shutil, statistics, sys, tarfile, tempfile, time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
ROOT = Path(__file__).resolve().parent.parent/'galvatron'

MODELS = { # name: (model_type, lengths)
    'llama-7b':('llama_hf','2048,4096,8192'), 'llama3-8b':('llama_hf','2048,4096,8192'), 'gpt-1.5b':('gpt_hf','2048,4096,8192'),
    'gpt-6.7b':('gpt_hf','2048,4096,8192'), 'qwen2.5-7b':('llama_hf','2048,4096,8192'), 'llama-13b':('llama_hf','2048,4096,8192')}
ALSO = {'gpt-1.5b':'1024'} # lengths beside these, once all models have theirs: the one it was made for
TINY = dict(vocab_size=512, intermediate_size=192, num_attention_heads=8)


def spec_of(name, tiny):
    from galvatron.model_spec import ModelSpec
    small = dict(TINY, hidden_size=64+16*[*MODELS].index(name)) # each of its own size, and so of its own name
    return ModelSpec.from_size(MODELS[name][0], name, **({**small, 'num_key_value_heads':8} if tiny and MODELS[name][0]=='llama_hf' else small if tiny else {}))

PASSES = [ # each build of a width is made and warmed once a pass
    dict(batches='1,2,4,8', cap=32768), dict(batches='1,2,4,8', cap=32768, lengths='also'), dict(batches='8', cap=65536, widths='1'), dict(batches='3,5,6,7', cap=32768, widths='1', lengths=1)]
COMPARE = dict(batches='1,4', cap=16384, widths='1', lengths=2, budget_ms=200.) # the layer alone beside whole models
MISSING = [{**PASSES[0], 'widths':'2,4,8'}, PASSES[2]]

def measure(name, folder, seconds, o, batches, cap, widths='', lengths=None, budget_ms=0.):
    "One pass over one model: some batches, at every width and form or at those given, and the first `lengths`, or those of `ALSO`"
    from galvatron.profile.model import ProfileModelArgs, profile_model
    seqs = ['16' if o.tiny else ALSO[name]] if lengths=='also' else ('32,64,128' if o.tiny else MODELS[name][1]).split(',')[:lengths]
    spec = spec_of(name, o.tiny)
    profile_model(ProfileModelArgs(profile_type='all', profile_mode='static', profile_seq_length_list=','.join(seqs), max_tp_deg=8, mixed_precision=o.precision, layernum_max=o.layernum_max,
                  compile=o.compile, budget_ms=min(budget_ms, 10*o.budget_ms) or o.budget_ms, settle_ms=o.settle_ms, max_tokens=cap//64 if o.tiny else cap, output_dir=str(folder), device=o.device, batches=batches, widths=widths, time_limit=seconds), spec)
    return spec

def report(folder, spec, precision):
    "The layer alone beside the difference of two depths; spread of the repeats"
    from galvatron.profile.files import ModelProfile, difference
    m = ModelProfile.load(folder, spec, precision)
    alone = {(p.batch,p.seq):p for p in m.points if p.kind=='layer' and p.width==1 and p.forward_ms}
    by = difference([d for d in m.depths if 'forward_ms' in d])
    spread = {(d['batch'],d['seq'][0]):d['excess_spread_ms']/(d['layers'][0]-1) for d in m.depths if 'excess_spread_ms' in d} # of a layer; not in files of before
    rows = [(b, s, p, d*b, spread.get((b,s))) for (b,s),p in sorted(alone.items(), key=lambda i: (i[0][1],i[0][0])) if (d := by.get(f'layertype_0_bsz{b}_seq{s}'))]
    for b,s,p,d,r in rows:
        print(f'  {spec.name} {b} x {s}: alone {p.forward_ms:.3f} ms, by difference {d:.3f} ms ({d/p.forward_ms-1:+.1%}{f", quartiles at ±{r/p.forward_ms:.1%}" if r is not None else ", of an earlier run"}), '
              f'backward {p.backward_ms:.3f}, recompute {p.recompute_ms:.3f}, spread {p.spread:.1%}, keeps {p.activation_mib or 0:.0f} MiB')
    off = sorted(abs(d/p.forward_ms-1) for _,_,p,d,r in rows if r is not None)
    if off: print(f'  {spec.name}: alone and by difference are apart by {sum(off)/len(off):.1%} in the mean, {statistics.median(off):.1%} in the median, {off[-1]:.1%} at most; {sum(o<=.05 for o in off)} of {len(off)} points within 5 %')
    best = max(alone, key=lambda k: k[0]*k[1])
    print('  forward time x width / time at width 1, at', best, {f'{p.form} {p.width}': round(p.forward_ms*p.width/alone[best].forward_ms, 2) for p in m.points
          if p.kind=='layer' and (p.batch,p.seq)==best and p.forward_ms})

def begin_from_shipped(work, names, shipped, tiny, precision):
    "Copy the files of some models, so that only what they lack is measured"
    from galvatron.profile.files import model_files
    for name in names:
        for f in model_files(precision, spec_of(name, tiny).name).values():
            if (p := Path(shipped)/MODELS[name][0]/'configs'/f).exists():
                (to := work/MODELS[name][0]/f).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(p, to)

def pack(work, out):
    "Everything measured so far as one file, replaced whole"
    tmp = Path(out)/'.profiles.tmp'
    with tarfile.open(tmp, 'w:gz') as t: t.add(work, arcname='.')
    os.replace(tmp, Path(out)/'profiles.tar.gz')

def lost(old, new):
    "What a model's profile holds that another lacks"
    timed = lambda m: {('whole models',d['batch'],*d['seq']) for d in m.depths if 'forward_ms' in d}
    return sorted(map(str, {p.key for p in old.points}-{p.key for p in new.points} | timed(old)-timed(new) | ({'optimizer'} if old.optimizer and not new.optimizer else set())))

def unlike(old, new):
    "In what two profiles differ whose times cannot stand in one file; another PyTorch is none of it"
    what = lambda m: {'layers of':m.layer_params, **{k:m.meta.get('machine', {}).get(k) for k in ('device','precision','compile','flash_attn')}}
    return [f'{k} {a} there, {what(new)[k]} here' for k,a in what(old).items() if a!=what(new)[k]]

def joined(old, new):
    "A model's profile with what only another one holds, of which `other_calls` in its meta tells when it was made and how much it is; of that one's whole models the times alone, since their memory may be that of an earlier runtime"
    from dataclasses import replace
    from galvatron.profile.files import merge_points
    at = lambda d: (d['batch'],*d['seq'])
    had = {at(d) for d in new.depths}
    rows = [{k:v for k,v in d.items() if k not in ('states_mib','activation_mib','peak_mib')} for d in old.depths if at(d) not in had]
    kept = [p for p in old.points if p.key not in {q.key for q in new.points}]
    begin = min([old.meta.get('date') or '', *(c['date'] or '' for c in old.meta.get('other_calls', ()))])
    other = dict(date=begin, until=old.meta.get('until', old.meta.get('date')), points=len(kept), whole_models=len(rows))
    meta = {**new.meta, 'other_calls':[*new.meta.get('other_calls', ()), other]} if kept or rows else new.meta # what `date` and `until` do not speak of
    return replace(new, points=merge_points([*new.points, *old.points]), depths=(*new.depths, *rows), optimizer=new.optimizer or old.optimizer, meta=meta)

def unpack(path, root=ROOT, keep=False):
    "Model files to galvatron/model_zoo/<model>/configs, hardware files to galvatron/profile_hardware/hardware_configs, marked as shipped; nothing that ships may get lost"
    from dataclasses import replace
    from galvatron.profile.files import HardwareProfile, ModelProfile
    with tempfile.TemporaryDirectory() as d:
        with tarfile.open(path) as t: t.extractall(d, filter='data')
        ready = []
        for f in sorted(Path(d).rglob('*_profile_*.json')):
            kind,hardware = f.parent.name,f.name.startswith('hardware_profile_')
            to = root/('profile_hardware/hardware_configs' if hardware else f'model_zoo/{kind}/configs')
            new = (HardwareProfile if hardware else ModelProfile).load(f)
            old = ModelProfile.load(to/f.name) if not hardware and (to/f.name).exists() else None
            if keep and old:
                if apart := unlike(old, new): sys.exit(f'{to/f.name} cannot be kept beside it: {"; ".join(apart)}: nothing was unpacked')
                new = joined(old, new)
            if old and (gone := lost(old, new)): sys.exit(f'{to/f.name} would lose {"; ".join(gone)}: nothing was unpacked')
            ready.append((replace(new, meta={'shipped':True, **new.meta}), to))
        for m,to in ready: # the documented files follow from the rich one
            to.mkdir(parents=True, exist_ok=True)
            print(*(p.relative_to(root.parent) for p in m.save(to)), sep='\n')

def compared(folder, name, o):
    "Whether a layer of this model and whole models took turns"
    from galvatron.profile.files import ModelProfile, model_files
    path = folder/model_files(o.precision, spec_of(name, o.tiny).name)['rich']
    return path.exists() and any('excess_spread_ms' in d for d in ModelProfile.load(path).depths)

def forget_compared(work, name, tiny, precision):
    "Leave out the whole models that will be compared again; returns the profile as it was"
    from dataclasses import replace
    from galvatron.profile.files import ModelProfile
    folder,spec = work/MODELS[name][0],spec_of(name, tiny)
    if not list(folder.glob(f'model_profile_*{spec.name}.json')): return
    m,seqs = ModelProfile.load(folder, spec, precision),('32,64,128' if tiny else MODELS[name][1]).split(',')[:COMPARE['lengths']]
    replace(m, depths=tuple(d for d in m.depths if not (str(d['batch']) in COMPARE['batches'].split(',') and str(d['seq'][0]) in seqs))).save(folder)
    return m

def restore(work, name, old, tiny, precision):
    "Put back what was left out and not compared after all; the optimizer's times stay those of the file, whose way of timing it they share"
    from dataclasses import replace
    from galvatron.profile.files import ModelProfile
    folder,spec = work/MODELS[name][0],spec_of(name, tiny)
    m = ModelProfile.load(folder, spec, precision)
    timed = {(d['batch'],*d['seq']) for d in m.depths if 'forward_ms' in d}
    def without(d): return {k:v for k,v in d.items() if k not in ('mparams','optimizer_ms')} | ({'began_empty':1} if 'optimizer_ms' in d else {}) # without gradients: its peak is the end of the backward
    rows = [without(d) if 'excess_spread_ms' in d or d not in old.depths else d for d in m.depths]
    replace(m, depths=(*rows, *(d for d in old.depths if (d['batch'],*d['seq']) not in timed and d not in rows)), optimizer=old.optimizer or m.optimizer).save(folder)

def run_pass(title, names, what, work, o, end, failed, generous=1.3, tell=False, again=False):
    "One pass over some models, `again` where whole models were timed before; a model's failure leaves the others"
    for i,name in enumerate(names):
        left,t,folder = end-time.time(),time.time(),work/MODELS[name][0]
        if left<o.least: failed.append(f'{title}, {name}: no time left'); continue
        seconds = left/(len(names)-i)*generous # what one leaves the next may use
        old = forget_compared(work, name, o.tiny, o.precision) if again else None
        try:
            spec = measure(name, folder, max(.1, min(seconds, left-2)), o, **what)
            print(f'{title}, {name}: {time.time()-t:.1f} s')
            if tell: report(folder, spec, o.precision)
        except Exception as e:
            import traceback; traceback.print_exc(); failed.append(f'{title}, {name}: {e}')
        if old: restore(work, name, old, o.tiny, o.precision)
        pack(work, o.out); sys.stdout.flush()

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--out'); p.add_argument('--unpack'); p.add_argument('--keep', action='store_true'); p.add_argument('--hardware', action='store_true'); p.add_argument('--tiny', action='store_true')
    p.add_argument('--models', nargs='*'); p.add_argument('--minutes', type=float, default=9.); p.add_argument('--budget_ms', type=float)
    p.add_argument('--missing', action='store_true'); p.add_argument('--compare', nargs='*'); p.add_argument('--shipped', default=ROOT/'model_zoo')
    p.add_argument('--settle_ms', type=float, default=40.) # and half of a longer rest: with the default of a profile the sweep of all models would take twice its ten minutes
    p.add_argument('--precision', default='bf16'); p.add_argument('--device', default=''); p.add_argument('--compile', action='store_true'); p.add_argument('--layernum_max', type=int, default=3)
    o = p.parse_args()
    if o.unpack: return unpack(o.unpack, keep=o.keep)
    if not o.out: p.error('--out or --unpack')
    o.models = o.models if o.models is not None else ['llama3-8b','qwen2.5-7b','llama-13b'] if o.missing else list(MODELS)
    o.budget_ms = o.budget_ms or (20. if o.missing else 40.)
    o.least = .1 if o.tiny else 5.
    start,end,failed = time.time(),time.time()+60*o.minutes,[]
    work = Path(o.out)/'work' if o.tiny else Path('/tmp/galvatron_profiles')
    work.mkdir(parents=True, exist_ok=True); Path(o.out).mkdir(parents=True, exist_ok=True)
    if o.hardware:
        from galvatron.profile.hardware import ProfileHardwareArgs, profile_hardware
        hw = profile_hardware(ProfileHardwareArgs(output_dir=str(work/'hardware_configs'), device=o.device, end_mb=4 if o.tiny else 1024, timeout=300))
        print(f'{hw.name}: {len(hw.tables)} tables, overlap {hw.overlap}, {hw.matmul_tflops:.0f} TFLOP/s, {hw.copy_gbps:.0f} GB/s, {time.time()-start:.0f} s'); pack(work, o.out)
    passes = PASSES
    if o.missing:
        if o.compare is None: o.compare = [n for n in MODELS if not compared(Path(o.shipped)/MODELS[n][0]/'configs', n, o)]
        begin_from_shipped(work, {*o.models, *o.compare}, o.shipped, o.tiny, o.precision)
        run_pass('compared', o.compare, COMPARE, work, o, start+.35*(end-start), failed, tell=True, again=True)
        passes = MISSING
    for k,what in enumerate(passes): run_pass(f'pass {k+1}', [n for n in o.models if what.get('lengths')!='also' or n in ALSO], what, work, o, end, failed, tell=not o.missing and k in (0, len(passes)-1))
    print(f'{time.time()-start:.0f} s in all', *failed, sep='\n')
    return bool(failed)

if __name__=='__main__': sys.exit(main())
