"The search against brute force, its monotonicity, and what it says where nothing fits. Quick: no processes, no torch."
import json, subprocess, sys, time
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from galvatron.cost.pipeline import pipeline_ms, predict
from galvatron.model_spec import ModelSpec
from galvatron.plan import GalvatronError, LayerStrategy, Plan, VocabStrategy
from galvatron.profile.files import HardwareProfile, ModelProfile
from galvatron.search.engine import Engine, SearchArgs, banner, explain, run_search, search
from galvatron.search.solve import Chain, choices, edge_bounds, least_budget, solve, standard_paths

# ---- abstract problems -----------------------------------------------------------------------------------------------------------------

def random_chain(rng, most=30_000):
    "A small problem, nastier than real ones: relayouts against the triangle inequality, ties, budgets from hopeless to ample"
    P = int(rng.integers(1, 4))
    while True:
        L, K = int(rng.integers(P, 7)), int(rng.integers(2, 9))
        if K**L <= most: break
    T, C = int(rng.integers(1, min(3, L)+1)), int(rng.integers(1, min(K, 4)+1))
    cuts = np.sort(rng.choice(np.arange(1, L), T-1, replace=False)) if T>1 else np.array([], int)
    runs = tuple((i, int(n)) for i, n in enumerate(np.diff(np.r_[0, cuts, L])))
    speed = rng.random(K)+0.5
    time = rng.integers(1, 20, (T, K, 4)).astype(float) if rng.random()<0.3 else rng.random((T, K, 4))*[1, 2, 0.5, 1]+[0.5, 1, 0, 0]
    time = time*rng.choice([1, 10], T)[:, None, None]*speed[:, None]
    if rng.random()<0.3 and K>2: time[rng.integers(T), rng.integers(K-1)+1] = np.inf            # a strategy that a type does not allow
    states, act, transient = rng.random((T, K))*5/speed, rng.random((T, K))*3/speed, rng.random((T, K))*rng.choice([0, 1, 6])
    if rng.random()<0.3: states, act, transient = np.round(states), np.round(act), np.round(transient)
    s, off = rng.choice([0, 0.02, 0.3, 2]), (1-np.eye(C))[..., None]
    c = Chain(runs, time, states, act, transient, np.r_[np.arange(C), rng.integers(0, C, K-C)], rng.random((T, C, C, 2))*s*off, rng.random((C, 2))*s, rng.random((C, 2))*s, rng.random((T, C, 2))*s,
              rng.random((T, C, C, 2))*s, rng.random((T, C))*rng.choice([0, 0.5]), rng.random(L+1)*rng.choice([0, 0.1, 3]), rng.random((P, 4))*rng.choice([0, 1, 4]), rng.random(P)*3,
              rng.random(P)*rng.choice([0, 3]), np.inf, P, int(rng.integers(1, 12)), ('gpipe', 'pipedream_flush')[rng.integers(2)])
    return replace(c, budget=least_budget(c)[0]*(1+rng.choice([-0.1, 0, 0.02, 0.1, 0.3, 0.6, 3]))+1e-6, cache={})

def brute(c):
    "The least iteration time, by trying everything"
    S = np.array(list(product(*[np.flatnonzero(np.isfinite(c.time[t]).all(1)) for t in c.types])))
    t, lay, best, L = c.types, c.layout[S], np.inf, c.n_layers
    for cut in combinations(range(1, L), c.pp-1):
        e, x, ok = (0, *cut, L), np.tile(c.fixed, (len(S), 1, 1)), np.ones(len(S), bool)
        for j, (l, r) in enumerate(zip(e, e[1:])):
            k, a, z = S[:, l:r], lay[:, l], lay[:, r-1]
            x[:, j] += c.time[t[l:r], k].sum(1)
            x[:, j, :2] += sum((c.move[t[i], lay[:, i], lay[:, i+1]] for i in range(l, r-1)), 0.0)
            x[:, j, :2] += c.arrive[t[l-1], lay[:, l-1], a] if j else c.enter[a]
            x[:, j, :2] += c.depart[t[r-1], z] if j<c.pp-1 else c.leave[z]
            mem = c.base[j] + (c.states+c.flight[j]*c.activation)[t[l:r], k].sum(1) + np.maximum(c.transient[t[l:r], k].max(1), c.floor[j])
            ok &= mem + (c.flight[j]*c.arrive_mib[t[l], a] if j else 0) <= c.budget
        if ok.any(): best = min(best, c.iteration(x[ok], c.wire[list(cut)]).min())
    return best

def value(c, s):
    "Iteration time of a solution, added up from scratch; asserts that it fits"
    t, lay, e = c.types, c.layout[list(s.layers)], np.cumsum((0,)+s.division)
    x = c.fixed.copy()
    for j, (l, r) in enumerate(zip(e, e[1:])):
        k = np.array(s.layers[l:r])
        x[j] += c.time[t[l:r], k].sum(0)
        x[j, :2] += sum((c.move[t[i], lay[i], lay[i+1]] for i in range(l, r-1)), 0.0) + (c.arrive[t[l-1], lay[l-1], lay[l]] if j else c.enter[lay[l]]) + (c.depart[t[r-1], lay[r-1]] if j<c.pp-1 else c.leave[lay[r-1]])
        mem = c.base[j] + (c.states+c.flight[j]*c.activation)[t[l:r], k].sum() + max(c.transient[t[l:r], k].max(), c.floor[j]) + (c.flight[j]*c.arrive_mib[t[l], lay[l]] if j else 0)
        assert mem <= c.budget+1e-6
    return float(c.iteration(x, c.wire[e[1:-1]]))

@pytest.mark.parametrize('block', range(8))
def test_equals_brute_force(block):
    "400 random problems, exactly, with a complete proof"
    solved = 0
    for seed in range(50*block, 50*block+50):
        c = random_chain(np.random.default_rng(seed))
        s, want = solve(c), brute(c)
        assert np.isfinite(s.ms)==np.isfinite(want), (seed, s, want)
        if not s.layers: continue
        solved += 1
        assert abs(s.ms-want) <= 1e-9*want and abs(s.bound-s.ms) <= 1e-9*want, (seed, s, want)
        assert abs(value(c, s)-s.ms) <= 1e-9*want
    assert solved > 35

def test_largest_small_problems():
    "Six layers, eight strategies, three stages: 2.6 million plans each"
    for seed in range(3):
        rng = np.random.default_rng(1000+seed)
        while True:
            c = random_chain(rng, 8**6)
            if (c.pp, c.n_layers, c.time.shape[1])==(3, 6, 8): break
        s, want = solve(c), brute(c)
        assert s.ms==want==np.inf or abs(s.ms-want) <= 1e-9*want

@pytest.mark.parametrize('block', range(5))
def test_monotone(block):
    "500 random pairs: more memory, a wider space or a smaller model is never slower"
    for seed in range(100*block, 100*block+100):
        rng = np.random.default_rng(seed)
        c = random_chain(rng, 10**9)
        what = seed%4
        if what==0: d = replace(c, budget=c.budget*(1+rng.random()), cache={})
        elif what==1: d = c; c = replace(c, time=np.where((np.arange(c.time.shape[1])==rng.integers(c.time.shape[1]))[:, None], np.inf, c.time), cache={})
        elif what==2: d = replace(c, time=c.time*(1-0.3*rng.random(c.time.shape[1]))[:, None], cache={})
        else: d = replace(c, states=c.states*0.8, activation=c.activation*rng.random(), cache={})
        assert solve(d).ms <= solve(c).ms*(1+1e-12), (seed, what)

def test_width_limit_gives_certificate():
    "A beam that is too narrow loses the proof, never the truth of the bound"
    from galvatron.search.solve import prepare
    for seed in range(60):
        c = random_chain(np.random.default_rng(seed))
        if c.pp==1: continue
        want, s = brute(c), prepare(c).solve(width=2)
        if np.isfinite(want): assert s.bound <= want*(1+1e-9) and s.ms >= want*(1-1e-9)

def test_time_per_micro_batch_does_not_rise():
    "What lets a sweep leave out numbers of micro-batches: with short messages, more of them are no slower each"
    rng = np.random.default_rng(0)
    for _ in range(30):
        P = int(rng.integers(2, 9))
        f, b = (1+0.5*(2*rng.random((2, 200, P))-1))*np.array([1, 2])[:, None, None]
        s, e, wire = rng.random((200, P)), rng.random((200, P)), rng.random((200, P-1))*0.01*3
        t = np.array([pipeline_ms(f, b, s, e, wire, m, 'pipedream_flush')/m for m in range(P, 40)])
        assert (np.diff(t, axis=0) <= 1e-9*t[1:]).all()
