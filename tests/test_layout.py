"Every pair of layouts of 4, 6 and 8 ranks: the moves give the right tensors, both ways, with the least traffic"
import itertools, subprocess, sys

import numpy as np
import pytest

from galvatron.layout import Layout, components, exchange, gather_dim, kind, received

SHAPE = (48, 48)

def layouts(n):
    "All layouts with up to three factors: tensor parallel with and without sequence parallel, Ulysses, strided, and their mixtures"
    out = set()
    for k in range(1, 4):
        for sizes in itertools.product([d for d in range(1, n+1) if n%d==0], repeat=k):
            if np.prod(sizes)==n: out |= {Layout(tuple(zip(sizes, roles))) for roles in itertools.product('BSR', repeat=k)}
    return sorted((l for l in out if all(48%l.parts(r)==0 for r in 'BS')), key=str)

def convert(shards, a, b, n):
    e = exchange(a, b, n)
    ub, us = SHAPE[0]//e.grid_b, SHAPE[1]//e.grid_s
    cut = lambda x,box: x[box[0]*ub:box[1]*ub, box[2]*us:box[3]*us]
    out = [np.full((SHAPE[0]//b.parts('B'), SHAPE[1]//b.parts('S')), -1) for _ in range(n)]
    for m in e.moves: cut(out[m.dst], m.dst_box)[:] = cut(shards[m.src], m.src_box)
    return out

FULL = np.arange(SHAPE[0]*SHAPE[1]).reshape(SHAPE)

@pytest.mark.parametrize('n', [4, 6, 8])
def test_all_pairs(n):
    ls = layouts(n)
    assert len(ls)>=9
    shards = {l:[l.local(FULL, r) for r in range(n)] for l in ls}
    for a,b in itertools.product(ls, repeat=2):
        got = convert(shards[a], a, b, n)
        assert all(np.array_equal(g, w) for g,w in zip(got, shards[b])), (str(a), str(b))

@pytest.mark.parametrize('n', [4, 6, 8])
def test_least_traffic_and_balance(n):
    "A rank receives exactly what it wants and has not; nothing arrives twice; sending is no less even than receiving"
    for a,b in itertools.product(layouts(n), repeat=2):
        e = exchange(a, b, n)
        sent, got = [0]*n, [0]*n
        for r in range(n):
            want, have = set(b.local(FULL, r).flat), set(a.local(FULL, r).flat)
            cell = FULL.size//(e.grid_b*e.grid_s)
            got[r] = sum(m.cells for m in e.moves if m.dst==r!=m.src)
            assert got[r]*cell==len(want-have)
            sent[r] = sum(m.cells for m in e.moves if m.src==r!=m.dst)
        assert received(a, b, n)==max(got)/(e.grid_b*e.grid_s)
        assert sum(sent)==sum(got) and max(sent)<=max(got), (str(a), str(b), sent, got)

@pytest.mark.parametrize('n', [4, 6, 8])
def test_components_and_kinds(n):
    for a,b in itertools.product(layouts(n), repeat=2):
        comps = components(a, b, n)
        assert sorted(sum(comps, ()))==list(range(n)) and all(list(c)==sorted(c) for c in comps)
        where = {r:c for c in comps for r in c}
        assert all(where[m.src] is where[m.dst] for m in exchange(a, b, n).moves)
        op,size = kind(a, b, n)
        assert size==(max(map(len, comps)) if a!=b else 1)
        assert (op in ('none', 'slice'))==(received(a, b, n)==0)
        if op=='all_gather':                     # really the concatenation in rank order
            for c in comps:
                dim = gather_dim(a, b, c)
                if dim is None: continue
                whole = np.concatenate([a.local(FULL, r) for r in c], axis=dim)
                assert all(np.array_equal(whole, b.local(FULL, r)) for r in c)

def test_equal_layouts_compare_equal():
    "Two ways of writing one division are one layout, so that passing between them is free"
    for n in (4, 6, 8):
        ls = layouts(n)
        for a,b in itertools.combinations(ls, 2): assert any(a.region(r)!=b.region(r) for r in range(n)), (str(a), str(b))

@pytest.mark.parametrize('n', [4, 6, 8])
def test_refine_sends_nothing_twice(n):
    "The rectangles of a refined layout are all different, and for a tensor-parallel layer (copies, no slices) each is a slice of the rank's own"
    for l in layouts(n):
        r = l.refine()
        assert len({r.region(i) for i in range(n)})==n
        if l.parts('S')==1: assert kind(l, r, n)[0] in ('none', 'slice')

def test_bad_input():
    with pytest.raises(ValueError, match='width 3 does not divide a stage of 8'): Layout.of(type('s', (), dict(width=3, ulysses=False, consecutive=True)), 8)
    with pytest.raises(ValueError, match='do not both have 8 ranks'): exchange(Layout(((4,'B'),)), Layout(((8,'B'),)), 8)
    with pytest.raises(ValueError, match='factor'): Layout(((4,'X'),))
    with pytest.raises(ValueError, match='cannot be cut'): Layout(((4,'B'),)).local(np.zeros((6, 2)), 0)

def test_no_torch():
    code = "import sys, galvatron.layout; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, '-c', code], check=True, timeout=60)
