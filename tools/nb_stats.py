"Measure the notebooks against the house's habits: short export cells, prose, visible asserts, small outputs"
import ast, json, re, statistics as st, sys
from pathlib import Path

MAX_CELL, MAX_BYTES = 60, 300_000                # lines of one export cell; bytes of stored outputs in one notebook

def mixed(s:str)->bool:
    "Whether a shown cell holds imports and other code: the site's build would run all of it"
    try: nodes = list(ast.walk(ast.parse(s)))
    except SyntaxError: return False                             # a magic or a shell line
    return any(isinstance(n, (ast.Import, ast.ImportFrom)) for n in nodes) and any(isinstance(n, (ast.Expr, ast.Assign)) for n in nodes)

def public(export:list)->list:
    "Functions and classes that a page exports, without methods that are added to classes elsewhere"
    tops = [n for s in export for n in ast.parse(s).body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith('_')]
    return [(n.name, {d.args[0].value for d in n.decorator_list if isinstance(d, ast.Call) and d.args and isinstance(d.args[0], ast.Constant)})
            for n in tops if not any(ast.unparse(d).startswith('patch') for d in n.decorator_list)]

def unshown(export:list, shown:list)->list:
    "Public names that no visible cell of their page uses; a command may be used by its name in a shell"
    text = '\n'.join(shown)
    return [n for n,also in public(export) if not re.search(rf'\b{n}\b', text) and not any(isinstance(a, str) and re.search(rf'\b{re.escape(a)}\b', text) for a in also)]

def measure(fn:Path)->dict:
    "Counts for one notebook"
    cells = json.loads(fn.read_text())['cells']
    code = [''.join(c['source']) for c in cells if c['cell_type']=='code']
    export = [s for s in code if re.search(r'^#\| *exports?\b', s, re.M)]
    hidden = [s for s in code if re.search(r'^#\| *hide\b', s, re.M)]
    body = lambda s: sum(1 for l in s.splitlines() if l.strip() and not l.startswith('#|'))
    shown = [s for s in code if s not in export]
    return dict(name=fn.stem, names=len(public(export)), unshown=unshown(export, shown), cells=[body(s) for s in export],
                words=sum(len(''.join(c['source']).split()) for c in cells if c['cell_type']=='markdown'),
                asserts=sum(len(re.findall(r'^\s*(?:assert|test_)', s, re.M)) for s in code if s not in export),
                hidden_tests=sum('assert' in s or 'test_' in s for s in hidden),
                mixed=sum(mixed(s) for s in code if s not in export and 'eval: false' not in s),
                stars=sum(' import *' in s for s in export),
                outputs=sum(len(json.dumps(c.get('outputs', []))) for c in cells if c['cell_type']=='code'))

def faults(m:dict)->list:
    "What a measured notebook breaks"
    out = [f'export cell of {n} lines (at most {MAX_CELL})' for n in m['cells'] if n>MAX_CELL]
    if m['hidden_tests']: out.append(f"{m['hidden_tests']} tests in hidden cells")
    if m['stars']: out.append(f"{m['stars']} star imports in export cells")
    if m['mixed']: out.append(f"{m['mixed']} cells with imports and other code")
    if m['cells'] and not m['asserts']: out.append('no visible assert')
    if m['outputs']>MAX_BYTES: out.append(f"{m['outputs']:,} bytes of outputs (at most {MAX_BYTES:,})")
    return [f"{m['name']}: {o}" for o in out]

WANTED = {'lines of an export cell, median':'at most 12', 'lines of the longest export cell':f'at most {MAX_CELL}', 'words of prose in a module page, mean':'at least 500',
          'module pages without a visible assert':'0', 'public names used in a visible cell of their page, %':'100; never less than now'}

def summary(ms:list)->dict:
    "The figures that CONTRIBUTING shows"
    mods = [m for m in ms if m['cells']]
    every = [n for m in mods for n in m['cells']]
    names = sum(m['names'] for m in mods)
    return {'lines of an export cell, median':st.median(every), 'lines of the longest export cell':max(every), 'words of prose in a module page, mean':round(st.mean(m['words'] for m in mods)),
            'module pages without a visible assert':sum(not m['asserts'] for m in mods), 'public names used in a visible cell of their page, %':round(100*(1-sum(len(m['unshown']) for m in mods)/names))}

def measured(root:str='nbs')->list:
    "All notebooks below a folder"
    return [measure(f) for f in sorted(Path(root).rglob('*.ipynb')) if '.ipynb_checkpoints' not in f.parts]

MARK = '<!-- python tools/nb_stats.py --write -->\n' # before and after the table in CONTRIBUTING

def write_contributing(figures:dict, path:str='CONTRIBUTING.md'):
    "Put the figures in CONTRIBUTING"
    before,_,after = Path(path).read_text().split(MARK)
    rows = ['| of the notebooks | measured | wanted |','|---|---:|---|', *(f'| {k} | {v:g} | {WANTED[k]} |' for k,v in figures.items())]
    Path(path).write_text(before+MARK+'\n'.join(rows)+'\n'+MARK+after)

def main(*words)->int:
    "Print the table; the number of faults is the exit status. `-v` names what no visible cell uses, `--write` updates CONTRIBUTING"
    if '--write' in words: write_contributing(summary(measured()))
    verbose, ms = '-v' in words, measured(next((w for w in words if not w.startswith('-')), 'nbs'))
    mods = [m for m in ms if m['cells']]
    print(f"{'notebook':28s} cells median  max  words asserts  kB out  names shown")
    for m in ms:
        c = m['cells'] or [0]
        print(f"{m['name']:28s} {len(m['cells']):5d} {st.median(c):6.1f} {max(c):4d} {m['words']:6d} {m['asserts']:7d} {m['outputs']/1e3:7.1f} {m['names']-len(m['unshown']):6d}/{m['names']}")
        if verbose and m['unshown']: print('   not shown:', *m['unshown'])
    every = [n for m in mods for n in m['cells']]
    if every: print(f"export cells: {len(every)}, median {st.median(every):.0f}, longest {max(every)}, {sum(every):,} lines; {st.mean(m['words'] for m in mods):.0f} words a module page")
    print('\n'.join(f'{k}: {v}' for k,v in summary(ms).items()))
    bad = [f for m in ms for f in faults(m)]
    print('\n'.join(bad) or 'no faults')
    return len(bad)

if __name__=='__main__': sys.exit(main(*sys.argv[1:]))
