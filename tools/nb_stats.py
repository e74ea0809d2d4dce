"Measure the notebooks against the house's habits: short export cells, prose, visible asserts, small outputs"
import ast, json, re, statistics as st, sys
from pathlib import Path

MAX_CELL, MAX_BYTES = 60, 300_000                # lines of one export cell; bytes of stored outputs in one notebook

def mixed(s:str)->bool:
    "Whether a shown cell holds imports and other code: the site's build would run all of it"
    try: nodes = list(ast.walk(ast.parse(s)))
    except SyntaxError: return False                             # a magic or a shell line
    return any(isinstance(n, (ast.Import, ast.ImportFrom)) for n in nodes) and any(isinstance(n, (ast.Expr, ast.Assign)) for n in nodes)

def measure(fn:Path)->dict:
    "Counts for one notebook"
    cells = json.loads(fn.read_text())['cells']
    code = [''.join(c['source']) for c in cells if c['cell_type']=='code']
    export = [s for s in code if re.search(r'^#\| *exports?\b', s, re.M)]
    hidden = [s for s in code if re.search(r'^#\| *hide\b', s, re.M)]
    body = lambda s: sum(1 for l in s.splitlines() if l.strip() and not l.startswith('#|'))
    return dict(name=fn.stem, cells=[body(s) for s in export],
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

def main(root:str='nbs')->int:
    "Print the table; the number of faults is the exit status"
    ms = [measure(f) for f in sorted(Path(root).rglob('*.ipynb')) if '.ipynb_checkpoints' not in f.parts]
    mods = [m for m in ms if m['cells']]
    print(f"{'notebook':28s} cells median  max  words asserts  kB out")
    for m in ms:
        c = m['cells'] or [0]
        print(f"{m['name']:28s} {len(m['cells']):5d} {st.median(c):6.1f} {max(c):4d} {m['words']:6d} {m['asserts']:7d} {m['outputs']/1e3:7.1f}")
    every = [n for m in mods for n in m['cells']]
    if every: print(f"export cells: {len(every)}, median {st.median(every):.0f}, longest {max(every)}, {sum(every):,} lines; {st.mean(m['words'] for m in mods):.0f} words a module page")
    bad = [f for m in ms for f in faults(m)]
    print('\n'.join(bad) or 'no faults')
    return len(bad)

if __name__=='__main__': sys.exit(main(*sys.argv[1:]))
