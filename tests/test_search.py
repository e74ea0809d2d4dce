"The search against brute force, its monotonicity, and what it says where nothing fits. Quick: no processes, no torch."
import os, re, subprocess, sys, time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from galvatron.cost.pipeline import RESERVE, pipeline_ms, predict
from galvatron.model_spec import ModelSpec
from galvatron.plan import GalvatronError, LayerStrategy, Plan, RunOptions
from galvatron.profile.files import HardwareProfile, ModelProfile
from galvatron.search.engine import AT_ONCE, Config, Engine, banner, binds, changes, compare, explain, memory_curve, reasons, report, run_search, search, spread, typed
from galvatron.search.bounds import least_budget
from galvatron.search.join import MOST, joins, parts_of, placed, places
from galvatron.search.solve import prepare, solve
from galvatron.search.space import SearchArgs
from galvatron.search.stage import Chain, Solution, brute_force, ordered, peaks, prices

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
    gone, after, others = act*rng.choice([0, 0.5, 1]) + states*(rng.random((T, K))-0.5)*rng.choice([0, 1]), states*rng.choice([0, 1, 1.4])+transient*rng.choice([0, 1]), rng.random((P, 3))*rng.choice([0, 8], (P, 3))
    if rng.random()<0.3: others[:] = -np.inf
    s, off = rng.choice([0, 0.02, 0.3, 2]), (1-np.eye(C))[..., None]
    c = Chain(runs, time, states, act, transient, gone, after, np.r_[np.arange(C), rng.integers(0, C, K-C)], rng.random((T, C, C, 2))*s*off, rng.random((C, 2))*s, rng.random((C, 2))*s, rng.random((T, C, 2))*s,
              rng.random((T, C, C, 2))*s, rng.random((T, C))*rng.choice([0, 0.5]), rng.random((P-1, L+1))*rng.choice([0, 0.1, 3]), rng.random((P, 4))*rng.choice([0, 1, 4]), rng.random(P)*3,
              rng.random(P)*rng.choice([0, 3]), others, np.inf, P, int(rng.integers(1, 12)), ('gpipe', 'pipedream_flush')[rng.integers(2)])
    budget = least_budget(c)[0]*(1+rng.choice([-0.1, 0, 0.02, 0.1, 0.3, 0.6, 3]))+1e-6
    if rng.random()<0.5:                                                                       # just enough, or not quite, for some plan in this order of its layers
        e = np.r_[0, np.sort(rng.choice(np.arange(1, L), P-1, replace=False)), L].astype(int)
        budget = max(peaks(c, j, l, r, [rng.choice(np.flatnonzero(np.isfinite(c.time[t]).all(1))) for t in c.types[l:r]]) for j, (l, r) in enumerate(zip(e, e[1:])))
        budget = float(budget)*(1+rng.choice([1e-9, -1e-9]))
    return replace(c, budget=budget, cache={})

def value(c, s):
    "Iteration time of a solution, added up from scratch; asserts that it fits"
    t, lay, e = c.types, c.layout[list(s.layers)], np.cumsum((0,)+s.division)
    x = c.fixed.copy()
    for j, (l, r) in enumerate(zip(e, e[1:])):
        k = np.array(s.layers[l:r])
        x[j] += c.time[t[l:r], k].sum(0)
        x[j, :2] += sum((c.move[t[i], lay[i], lay[i+1]] for i in range(l, r-1)), 0.0) + (c.arrive[t[l-1], lay[l-1], lay[l]] if j else c.enter[lay[l]]) + (c.depart[t[r-1], lay[r-1]] if j<c.pp-1 else c.leave[lay[r-1]])
        assert peaks(c, j, l, r, k) <= c.budget+1e-6
    return float(c.iteration(x, c.wires[np.arange(c.pp-1), e[1:-1]]))

@pytest.mark.parametrize('block', range(8))
def test_equals_brute_force(block):
    "400 random problems, exactly, with a complete proof; no bound is above the best plan, and what polishing finds is a plan of the time it states"
    solved, polished = 0, 0
    for seed in range(50*block, 50*block+50):
        c = random_chain(np.random.default_rng(seed))
        s, want = solve(c), brute_force(c)
        assert np.isfinite(s.ms)==np.isfinite(want), (seed, s, want)
        assert (p := prepare(c)).bound <= want*(1+1e-9), (seed, p.bound, want)
        if c.pp>1 and seed%2==0 and (near := p.polish()).layers:
            polished += 1
            assert abs(value(c, near)-near.ms) <= 1e-9*want and near.ms >= want*(1-1e-9), (seed, near, want)
        if not s.layers: continue
        solved += 1
        assert abs(s.ms-want) <= 1e-9*want and abs(s.bound-s.ms) <= 1e-9*want, (seed, s, want)
        assert abs(value(c, s)-s.ms) <= 1e-9*want
    assert solved > 35 and polished > 2

def test_superfluous_layouts():
    "Twins of all layouts that are dearer to reach, at times worse themselves, are forgotten and change nothing; half of them cheaper, and the answer is brute force's"
    dropped = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        c = random_chain(rng, most=60)
        C, worse, some = c.move.shape[1], rng.choice([0, 0.1]), rng.choice([1, -1])
        grown = {n: np.concatenate([x, x+worse*rng.random(x.shape)], 1) for n in ('time', 'states', 'activation', 'transient', 'after') for x in [getattr(c, n)]}
        twin, dear = np.arange(2*C)//C, rng.random()*0.1
        pair, one = dear*(twin[:, None]+twin)[..., None]*(1-np.eye(2*C))[..., None], dear*twin[:, None]
        tile = lambda x, axes: np.tile(x, [2 if a in axes else 1 for a in range(x.ndim)])
        both = replace(c, **grown, gone=tile(c.gone, (1,)), layout=np.r_[c.layout, c.layout+C], move=tile(c.move, (1, 2))+pair, arrive=tile(c.arrive, (1, 2))+pair, depart=tile(c.depart, (1,))+one,
                       enter=np.maximum(tile(c.enter, (0,))+some*one, 0), leave=tile(c.leave, (0,))+one, arrive_mib=tile(c.arrive_mib, (1,)), cache={})
        s, want = solve(both), brute_force(both)
        assert np.isfinite(s.ms)==np.isfinite(want) and not (np.isfinite(want) and abs(s.ms-want) > 1e-9*want), (seed, s, want)
        if some==1: assert (both.layouts()<C).all() and np.isclose(want, brute_force(c), rtol=1e-9)
        dropped += 2*C-len(both.layouts())
    assert dropped > 30

def test_largest_small_problems():
    "Six layers, eight strategies, three stages: 2.6 million plans each"
    for seed in range(2):
        rng = np.random.default_rng(1000+seed)
        while True:
            c = random_chain(rng, 8**6)
            if (c.pp, c.n_layers, c.time.shape[1])==(3, 6, 8): break
        s, want = solve(c), brute_force(c)
        assert s.ms==want==np.inf or abs(s.ms-want) <= 1e-9*want

def test_labels_of_different_layouts(monkeypatch):
    "However few labels there are, comparing those of different layouts keeps a best one (a comparison that forgets what moving costs fails three of these)"
    import galvatron.search.stage as module
    monkeypatch.setattr(module, 'CROWD', 0)
    solved = 0
    for seed in range(700):
        c = random_chain(np.random.default_rng(seed), 4000)
        if c.pp>1 or not np.isfinite(want := brute_force(c)): continue
        s, solved = solve(c), solved+1
        assert abs(s.ms-want) <= 1e-9*want and abs(s.bound-want) <= 1e-9*want and abs(value(c, s)-want) <= 1e-9*want, (seed, s, want)
    assert solved > 150

def test_places_hold_for_fewer_micro_batches():
    "What joined places prove for a number of micro-batches, a micro-batch, is no more than the best plan takes for any smaller number above that of the stages"
    tried, near = 0, 0
    for seed in range(100):
        c = random_chain(np.random.default_rng(seed), 1000)
        if c.pp==1: continue
        for m, M in ((c.pp+1, c.pp+4), (2*c.pp, 5*c.pp)):
            few = replace(c, kind='pipedream_flush', chunks=m, cache={})
            if not np.isfinite(want := brute_force(few)): continue
            bound = placed(replace(few, chunks=M, cache={})).join(1.2*want/m*M, any_last=True)[0]
            tried, near = tried+1, near+(bound/M > 0.9*want/m)
            assert bound/M <= want/m*(1+1e-9), (seed, bound/M, want/m)
    assert tried > 40 and near > tried//10, (tried, near)

def test_joined_stages_equal_brute_force():
    "Stages joined by the parts of an iteration: what no plan takes less than is no less than these parts ask of every plan, and no more than the best plan takes; without layouts at borders it is no higher, and plans that come of it fit"
    tight, plain = 0, 0
    for seed in range(120):
        c = random_chain(np.random.default_rng(seed), 4000)
        if c.pp==1 or not joins(c) or not np.isfinite(want := brute_force(c)): continue
        asked, parts = replace(c, cache={}), parts_of(c)[0]
        asked.iteration = lambda x, wires: places(c, v := np.einsum('njt,jtp->njp', x, parts), wires).max(-1)+v[..., MOST].max(-1)
        least, limit, p = brute_force(asked), want*1.05, prepare(c)
        assert least <= want*(1+1e-9), seed
        bound, plans = p.join(limit)
        assert min(least, limit)*(1-1e-9) <= bound <= want*(1+1e-9), (seed, least, bound, want)
        loose, rough = prepare(c).join(limit, any_last=True)
        assert loose <= bound*(1+1e-9), (seed, loose, bound)
        for division, layers in plans + (p.rejoin(rough, limit) if rough else []): assert value(c, Solution(0, 0, division, layers)) >= want*(1-1e-9), seed
        tight, plain = tight+(bound >= want*(1-1e-9)), plain+(p.bound >= want*(1-1e-9))
    assert tight > plain+10 and tight > 20, (tight, plain)

def test_what_displaces_contents_is_not_left_out(monkeypatch):
    "Times that joined stages do not count (`finish` of later stages) or weigh differently: each number that contents or labels are compared in is needed, and what displaces another stays, whatever paths say of it"
    import galvatron.search.join as module
    for seed in (32, 74, 76, 91, 119, 143, 197, 213, 342, 526, 610, 636, 752):  # each of these fails without one of the numbers, or where paths leave out contents for times that these do not see
        rng = np.random.default_rng(seed)
        P, K = int(rng.integers(2, 4)), int(rng.integers(2, 5))
        L = P+int(rng.integers(0, 3))
        time, m, z = rng.random((1, K, 4))*[3, 3, rng.choice([0, 3, 10]), rng.choice([0, 3, 10, 30])]+[.2, .2, 0, 0], rng.random((1, K)), np.zeros
        c = Chain(((0, L),), time, m, 0*m, 0*m, 0*m, m, z(K, int), z((1, 1, 1, 2)), z((1, 2)), z((1, 2)), z((1, 1, 2)), z((1, 1, 1, 2)), z((1, 1)), rng.random((P-1, L+1))*rng.choice([0, 0.1]),
                  rng.random((P, 4))*rng.choice([0, 1, 4]), z(P), z(P), np.full((P, 3), -np.inf), np.inf, P, int(rng.integers(1, 9)), ('gpipe', 'pipedream_flush')[rng.integers(2)])
        c = replace(c, budget=least_budget(c)[0]*rng.choice([1.05, 1.2, 1.5, 4])+1e-6, cache={})
        assert joins(c)
        want = brute_force(c)
        for more, narrow in ((1.003, 0.01), (1.02, 0.01), (1.02, 1.0)):     # a wide window needs `most` in labels as well
            monkeypatch.setattr(module, 'NARROW', narrow)
            assert prepare(c).join(want*more)[0] <= want*(1+1e-9), (seed, more, narrow)

@pytest.mark.parametrize('block', range(5))
def test_monotone(block):
    "500 random pairs: more memory, a wider space, more numbers of micro-batches or a smaller model is never slower"
    for seed in range(100*block, 100*block+100):
        rng, what = np.random.default_rng(seed), seed%5
        if what==4:
            *m, a = setup(ModelSpec.from_size('llama_hf', None, int(rng.integers(1, 4)), 512, hidden_size=512, intermediate_size=1408, num_attention_heads=8, vocab_size=4096), gpus=int(rng.choice([1, 2, 4])),
                          memory_constraint=float(rng.choice([1.5, 2, 4])), settle_bsz=int(rng.choice([6, 8, 12])), fine_grained_mode=int(rng.integers(2)))
            one, every = search(*m, replace(a, settle_chunk=int(rng.choice([d for d in range(1, 13) if a.settle_bsz%d==0])))), search(*m, a)
            assert one.plan is None or every.plans[0].ms*(1-every.gap) <= one.plans[0].ms*(1+1e-9), seed
            continue
        c = random_chain(rng, 10**9)
        if what==0: d = replace(c, budget=c.budget*(1+rng.random()), cache={})
        elif what==1: d = c; c = replace(c, time=np.where((np.arange(c.time.shape[1])==rng.integers(c.time.shape[1]))[:, None], np.inf, c.time), cache={})
        elif what==2: d = replace(c, time=c.time*(1-0.3*rng.random(c.time.shape[1]))[:, None], cache={})
        else: d = replace(c, states=c.states*0.8, activation=c.activation*rng.random(), cache={})
        assert solve(d).ms <= solve(c).ms*(1+1e-12), (seed, what)

def test_width_limit_gives_certificate():
    "A beam that is too narrow loses the proof, never the truth of the bound"
    for seed in range(60):
        c = random_chain(np.random.default_rng(seed))
        if c.pp==1: continue
        want, p = brute_force(c), prepare(c)
        p.sketch()
        s = p.prove(width=2)
        if np.isfinite(want): assert s.bound <= want*(1+1e-9) and s.ms >= want*(1-1e-9)

def test_short_enumerations_give_certificates(monkeypatch):
    "Lists that are cut lose the proof, never the truth of the bound"
    import galvatron.search.stage as module
    monkeypatch.setattr(module, 'LIMIT', 12)
    cut = 0
    for seed in range(120):
        c = random_chain(np.random.default_rng(seed))
        want, s = brute_force(c), solve(c)
        if np.isfinite(want): assert s.bound <= want*(1+1e-9) and s.ms >= want*(1-1e-9), seed
        cut += s.bound < s.ms*(1-1e-9)
    assert cut > 3

def test_time_per_micro_batch_does_not_rise():
    "What lets a sweep leave out numbers of micro-batches: with short messages, more of them are no slower each"
    rng = np.random.default_rng(0)
    for _ in range(30):
        P = int(rng.integers(2, 9))
        f, b = (1+0.5*(2*rng.random((2, 200, P))-1))*np.array([1, 2])[:, None, None]
        s, e, wire = rng.random((200, P)), rng.random((200, P)), rng.random((200, P-1))*0.01*3
        t = np.array([pipeline_ms(f, b, s, e, wire, m, 'pipedream_flush')/m for m in range(P, 40)])
        assert (np.diff(t, axis=0) <= 1e-9*t[1:]).all()

# ---- the whole engine ------------------------------------------------------------------------------------------------------------------

CONTEXT = dict(context_mib=1024.) # of a process with the world's communicator: the budgets here leave room for that, whatever the formulas assume

def setup(spec, nodes=1, gpus=8, device='a100', **kw):
    h = HardwareProfile.analytic(device, nodes, gpus)
    return spec, replace(h, meta=h.meta|CONTEXT) if nodes*gpus>1 else h, ModelProfile.analytic(spec, device), SearchArgs(num_nodes=nodes, num_gpus_per_node=gpus, **kw)

def check(r, a):
    "What every result must satisfy"
    p = r.prediction
    r.plan.check(a.world_size, r.engine.spec, r.engine.options)
    assert p.fits and abs(p.iteration_ms-r.plans[0].ms) <= 1e-9*p.iteration_ms and r.gap <= 1e-3
    return r.plan

LLAMA = ModelSpec.from_size('llama_hf', 'llama-7b')

@pytest.mark.parametrize('gpus, layers, space, sp, python_ms', [(2, 3, 'tp+sp', True, 0.), (4, 2, 'tp', False, 0.), (4, 2, 'tp+sp', True, 0.), (2, 3, 'tp+sp', True, .8)]) # with 0.8 about half of the layers wait for Python
def test_engine_equals_brute_force(gpus, layers, space, sp, python_ms):
    "Every plan of a small space, priced by `predict`, one by one; what fits is what `predict` says, also with budgets between a plan's peak and its additive bound"
    spec = ModelSpec.from_size('llama_hf', None, layers, 512, hidden_size=1024, intermediate_size=2816, num_attention_heads=16, vocab_size=8192)
    *m, a = setup(spec, gpus=gpus, memory_constraint=40, settle_bsz=8, sp_space=space, sequence_parallel=sp, max_tp_deg=4)
    if python_ms: m[2] = replace(m[2], points=tuple(replace(q, host_ms=python_ms, host_again_ms=1.7*python_ms) if q.kind=='layer' else q for q in m[2].points))
    e, plans = Engine(*m, a), []
    for pp in [d for d in (1, 2, 4) if d<=min(layers, gpus)]:
        for division in [c for c in product(range(1, layers+1), repeat=pp) if sum(c)==layers]:
            for kind, chunks, v in product(('pipedream_flush',) if pp==1 else ('gpipe', 'pipedream_flush'), (1, 2, 4, 8), e.vocabularies(pp)):
                ok = [s for s in e.strategies(pp) if (8//chunks)%s.dp(gpus//pp)==0]
                if (8//chunks)%v.dp(gpus//pp): continue
                for layer in product(ok, repeat=layers):
                    p = predict(Plan(layer, v, pp, division, kind, chunks, 8), pricer=e.pricer)
                    plans.append((p.iteration_ms, p.peak_mib, p.bound_mib, pp, chunks, kind=='gpipe'))
    ms, peak, bound, *shared = np.array(plans).T
    rng, least, between = np.random.default_rng(gpus), peak.min(), 0
    fast = np.argsort(ms)[:3*len(ms)//10]
    hidden = [i for i in fast if bound[i]>peak[i]*1.002 and ms[i]<ms[bound<=peak[i]+0.01].min(initial=np.inf)*(1-1e-9)] # plans that the bound alone would leave out at a budget of their peak
    for n in range(14):
        budget = peak[rng.choice(hidden if n%2 else fast[:len(fast)*(n+1)//14])]+0.01
        want = ms[peak<=budget].min()
        between += want < ms[bound<=budget].min(initial=np.inf)*(1-1e-9)
        r = search(*m, replace(a, memory_constraint=budget/1024))
        check(r, a)
        assert abs(r.plans[0].ms-want) <= 1e-9*want, (budget, want, r.plan)
        families = [(table, chunks, kind) for table, chunks, kind in r.engine.families() if n%7==0]
        for low, (table, chunks, kind) in zip(r.engine.first_bounds(families) if families else (), families):
            inside = np.all([x==y for x, y in zip(shared, (table.sheet.pp, chunks, kind=='gpipe'))], 0) & (peak<=budget)
            assert 0 < low <= ms[inside].min(initial=np.inf)/8*(1+1e-9), (budget, table.sheet.pp, chunks, kind)
    assert len(ms)>2500 and between>=3 and not search(*m, replace(a, memory_constraint=least*0.9999/1024)).plan

def test_moments_are_those_of_predict():
    "What the solver holds for a stage, moment by moment, is the peak that `predict` gives"
    rng, seen = np.random.default_rng(0), set()
    for family, size in (('llama_hf', 'llama-7b'), ('gpt_hf', 'gpt-1.5b'), ('t5_hf', 't5-base')):
        *m, a = setup(ModelSpec.from_size(family, size, **(dict(layers=6) if family!='t5_hf' else {})), memory_constraint=500, settle_bsz=32, sequence_parallel=True, mixed_precision=str(rng.choice(['bf16', 'fp32'])))
        e = Engine(*m, a); e.left_out = []
        found = list(e.families())
        for _ in range(40):
            table, chunks, kind = found[rng.integers(len(found))]
            v, pp = table.vocabularies[rng.integers(len(table.vocabularies))], table.sheet.pp
            c = table.chain(chunks, kind, v)
            cuts = np.r_[0, np.sort(rng.choice(np.arange(1, c.n_layers), pp-1, replace=False)), c.n_layers].astype(int)
            k = np.array([rng.choice(np.flatnonzero(table.usable[t])) for t in c.types])
            p = predict(Plan(tuple(e.strategies(pp)[i] for i in k), v, pp, tuple(int(n) for n in np.diff(cuts)), kind, chunks, table.micro*chunks), pricer=e.pricer)
            for j, (l, r) in enumerate(zip(cuts, cuts[1:])):
                want = (p.stages[j].peak_mib-p.stages[j].context)/(1+RESERVE)
                assert abs(peaks(c, j, l, r, k[l:r])-want) <= 1e-9*want, (family, p.plan, j)
            second = next(sum(m.values()) for m in p.stages[-1].moments() if 'logits' in m and 'loss' not in m) # the head's, seldom the fullest
            mine = c.others[-1, 1] + (c.states+c.activation)[c.types[l:], k[l:]].sum() + c.arrive_mib[c.types[l], c.layout[k[l]]]*(pp>1)
            assert abs(mine-second) <= 1e-9*second, (family, p.plan)
            seen.add((pp>1, chunks>1, kind))
    assert len(seen)>=5, seen

@pytest.mark.parametrize('nodes, gpus', [(1, 6), (1, 7), (2, 6), (4, 6)])
def test_odd_gpu_counts(nodes, gpus):
    *m, a = setup(LLAMA, nodes, gpus, memory_constraint=40, settle_bsz=84, sequence_parallel=True, sp_space='tp+sp', max_tp_deg=6, max_pp_deg=7)
    plan = check(search(*m, a), a)
    assert a.world_size%plan.pp_deg==0

def test_the_search_prices_links_inside_a_node_and_between_nodes():
    "Eight stages on two nodes: the time of the search is that of `predict`, which tells the links apart"
    spec, h, p, a = setup(ModelSpec.from_size('llama_hf', 'llama-7b', 8), 2, 4, search_space='pp', settle_bsz=32, memory_constraint=40)
    r = search(spec, h, p, a)
    assert check(r, a).pp_deg==8 and len({*r.prediction.p2p})==2
    alike = replace(h, tables={k: t for k, t in h.tables.items() if not k[0].startswith('p2p') or k[1]*k[2]==8})
    assert search(spec, alike, p, a).plans[0].ms>r.plans[0].ms

def test_few_key_value_heads():
    "28 heads, 4 key-value heads: widths 1, 2, 4 only"
    *m, a = setup(ModelSpec.from_size('llama_hf', 'qwen2.5-7b'), memory_constraint=64, settle_bsz=16, sp_space='tp+sp', sequence_parallel=True)
    plan = check(search(*m, a), a)
    assert {s.width for s in plan.layers} <= {1, 2, 4}

@pytest.mark.parametrize('family, size, memory', [('t5_hf', 't5-3B', 9), ('swin_hf', 'swin-huge', 6), ('vit_hf', 'vit-huge', 8), ('bert_hf', 'bert-huge-48', 8), ('gpt_hf', 'gpt-6.7b', 16)])
def test_families(family, size, memory):
    "Encoder and decoder, Swin's stages and others; Ulysses only where it exists"
    *m, a = setup(ModelSpec.from_size(family, size), memory_constraint=memory, settle_bsz=64, sp_space='tp+sp', sequence_parallel=True)
    plan = check(search(*m, a), a)
    assert family=='gpt_hf' or not any(s.ulysses for s in plan.layers)

def test_widths_that_were_not_profiled():
    "What a model cannot have is not priced; what it could have and nobody measured is left out, with one line, also of the comparison"
    swin = ModelSpec.from_size('swin_hf')
    for gpus in (4, 6):
        *m, a = setup(swin, gpus=gpus, memory_constraint=10, settle_bsz=24)
        check(r := search(*m, a), a)
        assert swin.layer_types[0].heads==3 and not r.engine.unprofiled
    spec = ModelSpec.from_size('llama_hf', 'llama-7b', layers=4)
    s, h, p, a = setup(spec, gpus=4, memory_constraint=30, settle_bsz=8)
    r = search(s, h, replace(p, points=tuple(q for q in p.points if q.kind!='layer' or q.width==1), analytic=False), a)
    assert {s.width for s in check(r, a).layers}=={1} and report(r).count('widths left out of the search: 2, 4 (')==1

def test_nothing_fits():
    *m, a = setup(LLAMA, memory_constraint=1, settle_bsz=64)
    r = search(*m, a)
    text = r.engine.nothing_fits()
    need = r.engine.leanest()[0]
    assert r.plan is None and '1 GiB' in text and 'stage 0' in text and 'optimizer' in text and '--sequence_parallel (' in text
    assert search(*m, replace(a, memory_constraint=need*1.001/1024)).plan and not search(*m, replace(a, memory_constraint=need*0.98/1024)).plan

def test_what_would_fit_is_named():
    "The largest batch that fits, halved more than once, and the fewest nodes; the message is true of both"
    spec = ModelSpec.from_size('llama_hf', 'llama-7b', seq=4096)
    *m, a = setup(spec, device='h200', memory_constraint=14, settle_bsz=64, analytic='h200')
    text = (r := search(*m, a)).engine.nothing_fits()
    b, = re.findall(r'this would fit: --settle_bsz (\d+) ', text)
    assert r.plan is None and search(*m, replace(a, settle_bsz=int(b))).plan and not any(search(*m, replace(a, settle_bsz=more)).plan for more in (32, 16, 8, 4) if more>int(b)) and int(b)<32
    assert 'this would fit: --num_nodes 2 (' in text and search(*setup(spec, 2, device='h200')[:3], replace(a, num_nodes=2)).plan
    assert '=' not in text.replace('stage 0 of 1', '') and 'no smaller batch' not in text
    assert all(int(w.split()[1])>=16 for series in changes(replace(a, settle_bsz=50), 16) for w in map(typed, series) if 'settle_bsz' in w)

def test_the_report_tries_the_other_setting_of_switches_where_memory_binds(monkeypatch):
    *m, a = setup(LLAMA, device='h200', memory_constraint=36, settle_bsz=64)
    r, other = search(*m, a), search(*m, replace(a, async_grad_reduce=False))
    ms, was = other.prediction.iteration_ms, r.prediction.iteration_ms
    assert ms < 0.97*was and f'  with --no_async_grad_reduce: {ms:.1f} ms ({100*(ms/was-1):+.1f} %)' in reasons(r)
    assert not any('with --' in l for l in reasons(other)) and 'optimal under these switches' in r.summary()
    monkeypatch.setattr('galvatron.search.engine.search', lambda *a: pytest.fail('searched'))  # room enough: nothing to try, nor in a search itself
    assert search(*m, replace(a, memory_constraint=140)).switched()==[]
    narrow = replace(a, disable_tp=1, async_grad_reduce=False)
    assert Engine(*m, narrow).switches()==[dict(async_grad_reduce=True)] and Engine(*m, a).switches()==[dict(async_grad_reduce=False), dict(sequence_parallel=True)]

def test_the_largest_batch_that_was_tried_is_named():
    *m, a = setup(LLAMA, memory_constraint=78, max_bsz=32)
    text = '\n'.join(reasons(search(*m, a)))
    assert '\n  batch: 32 is the largest that was tried' in text and '--max_bsz' in text
    for kw in (dict(settle_bsz=32), dict(max_bsz=24, bsz_scale=4, memory_constraint=30)): # of 8 to 24 16 is the best
        r = search(*m, replace(a, **kw))
        assert r.plan.global_bsz ==kw.get('settle_bsz', 16) and 'largest that was tried' not in '\n'.join(reasons(r)), r.plan.global_bsz

def test_batches_that_nothing_divides():
    *m, a = setup(LLAMA, memory_constraint=40, settle_bsz=13)
    plan = check(search(*m, a), a)                              # 13 micro-batches of one sample
    assert plan.chunks==13 and all(s.dp(plan.stage_size(8))==1 for s in plan.layers)
    none = search(*m, replace(a, disable_pp=1, max_tp_deg=4))
    assert none.plan is None and 'no plan divides' in none.engine.nothing_fits()
    some = search(*m, replace(a, disable_pp=1, max_tp_deg=4, settle_bsz=-1, min_bsz=13, max_bsz=16, bsz_scale=1, memory_constraint=1)) # the smallest does not divide, another does and does not fit
    assert some.plan is None and 'no plan fits into 1 GiB' in some.engine.nothing_fits()

def test_presets_and_switches():
    *m, a = setup(LLAMA, memory_constraint=150, settle_bsz=64, sequence_parallel=True)
    found = {s: search(*m, replace(a, search_space=s)) for s in ('full', '3d', 'dp+tp', 'dp+pp', 'dp', 'sdp', 'tp', 'pp')}
    plans = {s: check(r, a) for s, r in found.items()}
    assert len(set(plans['3d'].layers))==1 and plans['3d'].vocab.width==plans['3d'].layers[0].width and not plans['3d'].layers[0].recompute
    assert plans['dp+tp'].pp_deg==1 and {s.width for s in plans['dp+pp'].layers}=={1} and all(s.dp_type=='ddp' for s in plans['dp+tp'].layers)
    assert set(plans['dp'].layers)=={LayerStrategy()} and set(plans['sdp'].layers)=={LayerStrategy(dp_type='zero3')} and plans['tp'].layers[0].width==8 and plans['pp'].pp_deg==8
    assert all(found['full'].plans[0].ms <= r.plans[0].ms*(1+1e-9) for r in found.values())
    tight = replace(a, memory_constraint=30)
    base = search(*m, tight).plans[0].ms
    for kw in (dict(disable_ckpt=1), dict(disable_sdp=1, default_dp_type='zero2'), dict(disable_tp=1), dict(disable_pp=1), dict(disable_vtp=1), dict(disable_tp_consec=1), dict(max_pp_deg=2), dict(fine_grained_mode=0), dict(embed_sdp=0), dict(pipeline_type='gpipe')):
        r = search(*m, replace(tight, **kw))
        assert r.plan is None or r.plans[0].ms >= base*(1-1e-9) or kw.get('default_dp_type'), kw
        if r.plan: check(r, a)
    assert search(*m, replace(tight, sp_space='tp+sp', disable_tp_consec=None)).plan

@pytest.mark.parametrize('space', ['3d', 'dp+tp', 'dp+pp', 'dp', 'tp', 'pp'])
def test_embed_sdp_needs_a_space_with_zero3(space):
    "One says yes and the other no: refused, not a smaller space or a wrong reason"
    *m, a = setup(LLAMA, memory_constraint=150, settle_bsz=64)
    with pytest.raises(GalvatronError, match=f'embed_sdp 1 does not go with search_space {re.escape(space)}$'): search(*m, replace(a, search_space=space, embed_sdp=1))

def test_recommended_batch_whatever_is_switched_off():
    "The three plain plans are a measure of the memory, not of the space"
    *m, a = setup(LLAMA, memory_constraint=150, max_bsz=256, recommend_min_bsz=1)
    start = Engine(*m, a).sweep()[0]
    assert start>8
    for off in (dict(disable_dp=1), dict(disable_tp=1), dict(disable_sdp=1), dict(embed_sdp=1), dict(search_space='sdp')): assert Engine(*m, replace(a, **off)).sweep()[0]==start, off

def test_two_full_moments_are_priced_together():
    "A deep model whose turns and optimizer are both full: prices of several moments raise the bound, and a hasty search still has a plan"
    *m, a = setup(ModelSpec.from_size('vit_hf', 'vit-xhuge'), device='h200', memory_constraint=20.2, settle_bsz=64, settle_chunk=1, disable_pp=1, embed_sdp=1, disable_vtp=1)
    e = Engine(*m, a)
    e.left_out = []
    e.options = replace(e.options, reduce_in_fp32=True)                                                        # or the optimizer's turn is never full
    e.pricer = replace(e.pricer, options=e.options, settings={})
    table, chunks, kind = next(iter(e.families()))
    problem = prepare(table.chain(chunks, kind, table.vocabularies[0]))
    *alone, together = prices(problem.stage)
    assert (together.mu>0).sum()>1 and together.bound > 1.1*max(p.bound for p in alone)
    assert problem.bound > 1.01*(together.bound+float(problem.chain.fixed[0]@problem.weight))                 # and with the order of layers it rises further
    s = problem.sketch()
    p = predict(e.plan_of(Config(64, 1, 1, kind, table.vocabularies[0]), s), pricer=e.pricer, memory_mib=a.memory_mib)
    assert problem.bound <= s.bound <= s.ms < 1.005*problem.bound and p.fits and abs(p.iteration_ms-s.ms) <= 1e-9*s.ms

def test_no_plan_is_below_the_bound_that_knows_the_order():
    "One stage whose layers hold more behind their turn than before it"
    seen = 0
    for seed in range(800):
        rng = np.random.default_rng(seed)
        c = random_chain(rng, most=2000)
        if c.pp>1: continue
        c = replace(c, gone=-2*rng.random(c.gone.shape), transient=4*rng.random(c.transient.shape), cache={})
        c = replace(c, budget=least_budget(c)[0]*(1.01+0.1*rng.random()), cache={})
        if not np.isfinite(want := brute_force(c)): continue
        assert abs(solve(c).ms-want) <= 1e-9*want
        problem = prepare(c)
        ps = prices(problem.stage)
        if len(more := ordered(problem.stage, ps))==len(ps): continue
        assert more[-1].bound+float(c.fixed[0]@problem.weight) <= want*(1+1e-9), seed
        seen += more[-1].bound > max(p.bound for p in ps)*(1+1e-6)
    assert seen>10, seen

def test_a_hasty_sketch_is_made_good(monkeypatch):
    "Without any effort a sketch is a plan that fits; the proof that follows is exact"
    monkeypatch.setattr('galvatron.search.stage.HURRY', -1.0); monkeypatch.setattr('galvatron.search.stage.HASTE', 1)
    hasty = 0
    for seed in range(120):
        c = random_chain(np.random.default_rng(seed))
        if c.pp>1: continue
        want, p = brute_force(c), prepare(c)
        s = p.sketch()
        assert bool(s.layers)==np.isfinite(want) and s.bound <= want*(1+1e-9) and (not s.layers or abs(value(c, s)-s.ms) <= 1e-9*s.ms)
        hasty += s.ms > want*(1+1e-6)
        s = p.prove()
        assert s.ms==want==np.inf or abs(s.ms-want) <= 1e-9*want and abs(s.bound-s.ms) <= 1e-9*want, seed
    assert hasty

def test_more_is_never_slower():
    "Memory, batches and layers of the engine"
    *m, a = setup(LLAMA, settle_bsz=32, sequence_parallel=True)
    times = [search(*m, replace(a, memory_constraint=g)).plans[0].ms for g in (17, 19, 22, 26, 31, 40, 60, 90)]
    assert all(y <= x*(1+1e-9) for x, y in zip(times, times[1:]))
    fewer = ModelSpec.from_size('llama_hf', 'llama-7b', 28)
    assert search(*setup(fewer, settle_bsz=32, sequence_parallel=True, memory_constraint=22)).plans[0].ms <= times[2]

@pytest.mark.parametrize('device, memory, kw', [('a100', 36, {}), ('a100', 23, dict(async_grad_reduce=False)), ('h200', 24, dict(sequence_parallel=True, max_tp_deg=4, seq=4096)), ('h200', 75, dict(top_k=3))])
def test_equal_strategies_of_a_stage_are_side_by_side(device, memory, kw, monkeypatch):
    "What is returned is as fast, needs no more than the budget, and reads in few runs; without putting in order it does not"
    spec, kw = ModelSpec.from_size('llama_hf', 'llama-7b', seq=kw.get('seq')), {k: v for k, v in kw.items() if k!='seq'}
    *m, a = setup(spec, device=device, memory_constraint=memory, settle_bsz=64, **kw)
    runs = lambda f: sum(len(part.split(', ')) for part in f.plan.text(8).split(' || '))
    kinds = lambda f: sum(len(set(f.plan.layers[b-n:b])) for n, b in zip(f.plan.pp_division, np.cumsum(f.plan.pp_division)))
    r = search(*m, a)
    monkeypatch.setattr(Engine, 'tidied', lambda self, ms, plan: (ms, plan))
    was = search(*m, a)
    assert any(runs(f)>kinds(f) for f in was.plans)
    for f, g in zip(r.plans, was.plans):
        p, q = r.predict(f.plan), r.predict(g.plan)
        assert p.fits and q.iteration_ms*(1-1e-9) <= p.iteration_ms <= q.iteration_ms*(1+1e-12) and runs(f)==kinds(f), f.plan.text(8)
        for l, n in zip(np.cumsum((0, *f.plan.pp_division)), f.plan.pp_division): assert sorted(map(str, f.plan.layers[l:l+n]))==sorted(map(str, g.plan.layers[l:l+n]))
    check(r, a)

def test_pins():
    *m, a = setup(ModelSpec.from_size('llama_hf', 'llama-7b', layers=12), memory_constraint=16, settle_bsz=64, pin=['0-3:tp=2,ckpt=1', '10-11:sdp=0'])
    r = search(*m, a)
    plan = check(r, a)
    assert all(s.width==2 and s.recompute for s in plan.layers[:4]) and all(s.dp_type=='ddp' for s in plan.layers[10:])
    free = search(*m, replace(a, pin=[]))
    assert r.plans[0].ms >= free.plans[0].ms
    whole = search(*m, replace(a, pin=[f'{i}:width={s.width},ckpt={int(s.recompute)},dp={s.dp_type},consec={int(s.consecutive)}' for i, s in enumerate(free.plan.layers)]))
    assert abs(whole.plans[0].ms-free.plans[0].ms) <= 1e-9*free.plans[0].ms
    with pytest.raises(GalvatronError, match='pin 2:tp=3 allows no strategy on 8 GPUs .there are tp 1, 2, 4, 8'): search(*m, replace(a, pin=['2-3:tp=3']))

def test_nothing_inside_the_options_beats_the_answer():
    "Baselines keep to the options, or the report says that they do not"
    rng, seen = np.random.default_rng(5), set()
    for _ in range(20):
        off = {f'disable_{k}': 1 for k in ('dp', 'tp', 'pp', 'sdp', 'ckpt') if rng.random()<.2}
        *m, a = setup(ModelSpec.from_size('llama_hf', 'llama-7b', layers=int(rng.integers(2, 7))), memory_constraint=float(rng.choice([8, 12, 24])), settle_bsz=16, settle_chunk=int(rng.choice([-1, 1, 2, 4])),
                      pipeline_type=[None, 'gpipe', 'pipedream_flush'][rng.integers(3)], sp_space=str(rng.choice(['tp', 'tp+sp'])), max_tp_deg=int(rng.choice([2, 8])),
                      pin=['0:ckpt=1'] if rng.random()<.3 and 'disable_ckpt' not in off else [], **off)
        try: r = search(*m, a)
        except GalvatronError: continue
        if r.plan is None: continue
        for name, q in r.baselines().items():
            beyond = q and r.engine.outside(q.plan)
            seen.add((name, q and bool(beyond)))
            if q and not beyond: assert q.iteration_ms >= r.prediction.iteration_ms*(1-r.gap-1e-9), (name, a)
            if q and a.settle_chunk>0: assert q.plan.chunks==a.settle_chunk
            if beyond: assert 'outside of the options' in next(l for l in reasons(r) if name in l)
    assert {(n, b) for n in ('best uniform plan', 'best 3-D plan', 'rule of thumb') for b in (True, False)} <= seen, seen

def test_top_k_are_the_best_of_their_families():
    *m, a = setup(LLAMA, memory_constraint=36, settle_bsz=64, top_k=4)
    r = search(*m, a)
    assert len({f.config.family for f in r.plans})==4 and [f.ms for f in r.plans]==sorted(f.ms for f in r.plans)
    for f in r.plans:
        one = search(*m, replace(a, top_k=1, settle_chunk=f.config.chunks, pipeline_type=f.config.kind if f.config.pp>1 else None, max_pp_deg=f.config.pp)).plans
        assert one[0].ms <= f.ms*(1+1e-9)
    assert r.plans[0].ms == search(*m, replace(a, top_k=1)).plans[0].ms

def test_sweep_finds_the_best_batch():
    "A sweep agrees with searches of single batches, each with its own micro-batches"
    *m, a = setup(LLAMA, memory_constraint=24, min_bsz=16, max_bsz=96, bsz_scale=16, sequence_parallel=True)
    r = search(*m, a)
    check(r, a)
    single = [search(*m, replace(a, settle_bsz=b)).plans for b in range(16, 97, 16)]
    best = min(p[0].per_sample for p in single if p)
    assert abs(r.plans[0].per_sample-best) <= 1e-9*best

def test_hard_search_stops_and_reports_its_gap(monkeypatch):
    "ViT with 128 layers on 64 GPUs takes long to close; with a tenth of the effort the answer comes all the same, with a bound that holds"
    monkeypatch.setattr('galvatron.search.engine.EFFORT', 2e9)
    monkeypatch.setattr('galvatron.search.engine.HARD', 2e8)
    monkeypatch.setattr('galvatron.search.engine.CLOSING', 3e9)
    spec, hardware, profile, a = setup(ModelSpec.from_size('vit', 'vit-xhuge'), 8, memory_constraint=24, settle_bsz=64)
    t = time.process_time()
    r = search(spec, hardware, profile, a)
    assert time.process_time()-t < 30                                      # hours without a limit
    r.plan.check(64, spec, r.engine.options)
    assert r.prediction.fits and r.prediction.iteration_ms/64 >= r.engine.bound > 0 and 0 < r.gap < 0.3
    assert 'from the optimum' in r.summary() and r.engine.effort.left < 0
    known = 321.459/64                                                     # of a plan that the whole effort finds: no bound may be above it
    assert r.engine.bound <= known

@pytest.mark.parametrize('memory', [1.4, 1.4486])
def test_what_a_dive_sets_aside_counts_in_the_bound(monkeypatch, memory):
    "The effort ends with the first plan that a dive finds: what it had set aside by then is no less open than the rest"
    *m, a = setup(ModelSpec.from_size('gpt_hf', 'gpt-1.5b', 4, 512, hidden_size=512, num_attention_heads=8, vocab_size=8192), gpus=2, device='h200', settle_bsz=4, sp_space='tp+sp', sequence_parallel=True, max_tp_deg=2,
                  disable_ckpt=1, memory_constraint=memory)
    best = search(*m, a).plans[0].per_sample
    for name, n in (('EFFORT', 2e5), ('HARD', 1e5), ('CLOSING', 1e5)): monkeypatch.setattr(f'galvatron.search.engine.{name}', n)
    r = search(*m, a)
    assert r.engine.bound <= best*(1+1e-9) and r.plans[0].per_sample >= best*(1-1e-9)

@pytest.mark.parametrize('gpus, memory', [(2, 1.8), (4, 1.6)])
def test_joined_plans_have_the_prices_of_the_search(monkeypatch, gpus, memory):
    "A plan that joining stages finds competes with the others by the same times, `costmodel_coe` included"
    spec = ModelSpec.from_size('llama_hf', None, 4, 512, hidden_size=1024, intermediate_size=2816, num_attention_heads=16, vocab_size=8192)
    *m, a = setup(spec, gpus, 1, memory_constraint=memory, settle_bsz=16, search_space='dp+pp', costmodel_coe=2.0)
    best = search(*m, a).plans[0].ms
    for name in ('EFFORT', 'HARD'): monkeypatch.setattr(f'galvatron.search.engine.{name}', 1e5)
    r = search(*m, a)
    assert 'join' in [how for _, how, *_ in r.engine.log]
    assert r.engine.bound*16 <= best*(1+1e-9) and best*(1-1e-9) <= r.plans[0].ms <= best*1.001, (r.plans[0], best)

def test_same_file_for_any_number_of_workers(tmp_path, capsys):
    texts = []
    for n, kw in enumerate([dict(), dict(parallel_search=True, worker=1), dict(parallel_search=True, worker=8)]):
        out = tmp_path/str(n)
        run_search(SearchArgs(memory_constraint=24, settle_bsz=32, analytic='a100', output_config_path=str(out), log_dir=str(out/'logs'), **kw), LLAMA)
        texts.append(next(out.glob('*.json')).read_bytes())
    assert texts[0]==texts[1]==texts[2]
    said = capsys.readouterr().out
    for words in ('Searching Batch Sizes Info', 'Final results of max memory 24576 MB:', 'billion parameters, 2,048 tokens a sample; 8 GPUs', 'Optimal bsz = 32', 'Minimized timecost=', 'Memory remaining=', 'best uniform plan', 'best 3-D plan', 'rule of thumb', 'parallel_search: up to 8 processes'): assert words in said
    assert said.rstrip().endswith(banner('Galvatron Search Engine End Searching'))

def test_several_processes_find_the_same(tmp_path):
    "Bounds of a wide sweep, comparisons and the memory curve come from other processes, and are the same"
    *m, one = setup(LLAMA, 8, memory_constraint=24, max_bsz=512)
    several = replace(one, parallel_search=True, worker=3)
    a, b = search(*m, one), search(*m, several)
    assert a.engine.considered > AT_ONCE and (a.plan, a.gap, a.engine.bound, a.engine.effort.left)==(b.plan, b.gap, b.engine.bound, b.engine.effort.left)
    assert [(n, q and q.iteration_ms) for n, q in a.baselines().items()]==[(n, q and q.iteration_ms) for n, q in b.baselines().items()]
    assert [(c, q.iteration_ms) for c, q in a.switched()]==[(c, q.iteration_ms) for c, q in b.switched()]
    assert memory_curve(*m, replace(one, settle_bsz=16), [8, 24])==memory_curve(*m, replace(several, settle_bsz=16), [8, 24])
    for how in (one, several):
        with pytest.raises(GalvatronError, match='memory_constraint: -1'): memory_curve(*m, replace(how, settle_bsz=16), [-1, 24])

def test_a_model_without_ulysses_says_so():
    "`sp_space` is not passed over in silence"
    said = lambda kind, size, **kw: [n for n in Engine(*setup(ModelSpec.from_size(kind, size), settle_bsz=16, **kw)).notes if 'Ulysses' in n]
    assert said('bert_hf', 'bert-base', sp_space='tp+sp') and said('bert_hf', 'bert-base', sp_space='sp')
    assert not said('bert_hf', 'bert-base') and not said('gpt_hf', 'gpt-1.5b', sp_space='tp+sp') and not said('bert_hf', 'bert-base', sp_space='tp+sp', disable_tp=1)

def test_what_happens_to_other_processes_is_said():
    many = SearchArgs(parallel_search=True, worker=2)
    def bad(): raise GalvatronError('no such layer')
    with pytest.raises(GalvatronError, match='no such layer'): spread(many, [bad]*3)
    with pytest.raises(GalvatronError, match='ended from outside.*--worker'): spread(many, [lambda: os.kill(os.getpid(), 9)]*3)
    assert spread(many, [lambda: spread(many, [os.getpid]*2)]*2)[0][0]!=os.getpid()    # they have none of their own

def test_small_differences_are_not_zero():
    spec = ModelSpec.from_size('gpt_hf', 'gpt-1.5b', layers=4, seq=32, hidden_size=64, num_attention_heads=4)
    h, p = HardwareProfile.analytic('h200', 1, 2), ModelProfile.analytic(spec, 'h200', 'bf16')
    fast, slow = (predict(Plan.from_text(t, global_bsz=4), spec, h, p) for t in ('1-1-2 x4', '1-2-1 x4'))
    assert ' ms' in compare(fast, slow) and not re.search(r'[+-]0(\.0+)? ms', compare(fast, slow))

def test_a_strategy_file_may_be_named(tmp_path):
    a = SearchArgs(memory_constraint=40, settle_bsz=32, analytic='a100', log_dir=str(tmp_path/'logs'))
    r = run_search(replace(a, output_config_path=str(tmp_path/'new/plan.json')), LLAMA)
    assert r.file==tmp_path/'new/plan.json' and r.file.is_file()
    Plan.load(r.file).check(8, LLAMA)
    (folder := tmp_path/'old.json').mkdir()                                # what earlier versions made of such a name stays a folder
    assert run_search(replace(a, output_config_path=str(folder)), LLAMA).file.parent==folder
    (file := tmp_path/'file').write_text('')
    with pytest.raises(GalvatronError, match='file is not a folder that can be written'): run_search(replace(a, output_config_path=str(file/'plan.json')), LLAMA)

def test_nothing_is_written_where_nothing_fits(tmp_path):
    a = SearchArgs(memory_constraint=1, settle_bsz=32, analytic='a100', output_config_path=str(tmp_path/'configs'), log_dir=str(tmp_path/'logs'))
    with pytest.raises(GalvatronError, match='leanest'): run_search(a, LLAMA)
    assert not (tmp_path/'configs').exists() and (tmp_path/'logs').exists()

def test_folders_are_looked_at_before_the_search(tmp_path, monkeypatch):
    (file := tmp_path/'file').write_text('')
    monkeypatch.setattr('galvatron.search.engine.search', lambda *a: pytest.fail('searched'))
    for kw in (dict(log_dir=str(file)), dict(log_dir=str(tmp_path), output_config_path=str(file/'below'))):
        with pytest.raises(GalvatronError, match='file is not a folder that can be written'): run_search(SearchArgs(settle_bsz=32, analytic='a100', **kw), LLAMA)

def test_a_plan_is_saved_before_it_is_compared(tmp_path, monkeypatch):
    def dies(r): raise KeyError('a comparison')
    monkeypatch.setattr('galvatron.search.engine.report', dies)
    with pytest.raises(KeyError): run_search(SearchArgs(settle_bsz=32, memory_constraint=40, analytic='a100', log_dir=str(tmp_path/'logs'), output_config_path=str(tmp_path/'configs')), LLAMA)
    file, = (tmp_path/'configs').iterdir()
    Plan.load(file).check(8, LLAMA)

def test_profiles_of_two_devices_are_named(capsys):
    from galvatron.search.engine import _of_one_device
    _, h, p, _ = setup(LLAMA)
    for device, said in (('cpu', True), ('A100-SXM4', False), ('', False)):
        _of_one_device(h, replace(p, device=device))
        assert ('measured on A100 and the layers on cpu' in capsys.readouterr().err)==said

def test_explain_names_what_is_better(tmp_path):
    *m, a = setup(LLAMA, memory_constraint=36, settle_bsz=64)
    text = explain(Plan.uniform(32, 8, global_tp_deg=8, global_train_batch_size=64, chunks=16, vocab_tp=8, pipeline_type='pipedream_flush'), *m, a)
    assert 'the search chooses:' in text and 'tensor parallel' in text and 'memory' in text
    assert 'nothing faster' in explain(search(*m, a).plan, *m, a)

def test_no_torch_and_a_quick_start():
    "Importing and searching needs no torch"
    code = "import sys, galvatron.search.engine; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, '-c', code], check=True, timeout=60)

def test_profiles_from_files(tmp_path, monkeypatch):
    "Saved profiles, whole or the documented files alone, in one folder or apart, named or where they usually are"
    spec, hardware, profile, a = setup(LLAMA, memory_constraint=24, settle_bsz=32)
    hardware.save(tmp_path/'hardware_configs'); profile.save(tmp_path/'configs')
    monkeypatch.chdir(tmp_path)
    run = lambda **kw: run_search(replace(a, log_dir='logs', output_config_path='out', **kw), LLAMA)
    want = search(spec, hardware, profile, a).plans[0].ms
    assert abs(run().plans[0].ms-want) <= 1e-6*want
    for rich in (*tmp_path.glob('*/hardware_profile*'), *tmp_path.glob('*/model_profile*')): rich.unlink()
    documented = run().plans[0].ms
    (tmp_path/'times').mkdir()
    for f in (tmp_path/'configs').glob('computation*'): f.rename(tmp_path/'times'/f.name)
    folders = {f'{k}_path': str(tmp_path/'hardware_configs') for k in ('allreduce_bandwidth_config', 'p2p_bandwidth_config', 'overlap_coe', 'sp_time')}
    assert abs(run(time_profiling_path='times', memory_profiling_path='configs', **folders).plans[0].ms-documented) <= 1e-9*documented
    with pytest.raises(GalvatronError, match='none'): run(time_profiling_path='none', memory_profiling_path='none')

def test_benchmark_says_how_it_is_used():
    "and measures nothing when it is asked, or asked for something that it does not know"
    for word, rc in (('--help', 0), ('fast', 2)):
        p = subprocess.run([sys.executable, Path(__file__).parent.parent/'tools'/'bench_search.py', word], capture_output=True, text=True, timeout=60)
        assert p.returncode==rc and 'quick' in p.stdout+p.stderr and 'configurations' not in p.stdout

# ---- a profile that is not complete ----------------------------------------------------------------------------------------------------

def test_a_plan_that_rests_on_shares_nobody_measured_says_so():
    spec, hardware, formulas, args = setup(ModelSpec.from_size('llama_hf', 'llama-7b'), settle_bsz=32, settle_chunk=4, memory_constraint=60, max_tp_deg=4, disable_pp=1, search_space='tp')
    some = replace(formulas, analytic=False, points=tuple(p for p in formulas.points if p.width<=2 and p.form!='ulysses'))
    r = search(spec, hardware, some, args)
    assert {s.width for s in r.plan.layers}=={4}
    said = 'layers shared by tp 4 were not measured: their times follow from tp 1, 2 (profile-model --widths 4 measures them)'
    assert r.prediction.unmeasured==[said] and said in report(r) and said in explain(r.plan, spec, hardware, some, args)
    slower = replace(r.plan, layers=tuple(replace(s, recompute=True) for s in r.plan.layers))
    assert explain(slower, spec, hardware, some, args).count('(cluster by formula, not measured)')==2 # of the plan, and of the search's
    assert not search(spec, hardware, formulas, args).prediction.unmeasured                     # formulas say already that nothing was measured
    assert not search(spec, hardware, replace(some, points=formulas.points), args).prediction.unmeasured
    assert [some.stand_in(0, 2, *form) for form in ((False, False), (False, True), (True, True))]==['', '', 'sp 2']

# ---- communicators ---------------------------------------------------------------------------------------------------------------------

def costly(h, mib): return replace(h, meta=h.meta|dict(communicator_mib=mib))

def test_a_plan_that_its_communicators_push_over_the_budget_is_not_the_answer():
    "The first answer does not fit, the second does; several of them, and nothing at all, are consistent as well"
    s, h, p, a = setup(LLAMA, memory_constraint=36, settle_bsz=64, sp_space='tp+sp', sequence_parallel=True)
    h = costly(h, 1500.)
    e = Engine(s, h, p, a)
    first, r = e.run()[0], search(s, h, p, a)
    assert e.inside(first.plan)>0 and not r.predict(first.plan).fits and r.prediction.fits and r.plan!=first.plan
    assert 0<r.gap<.1 and first.ms <= r.plans[0].ms <= first.ms/(1-r.gap)*(1+1e-9)
    assert abs(r.prediction.iteration_ms-r.plans[0].ms) <= 1e-9*r.plans[0].ms
    top = search(s, h, p, replace(a, top_k=3))
    assert len(top.plans)==3==len({f.config.family for f in top.plans}) and all(top.predict(f.plan).fits for f in top.plans)
    assert [f.per_sample for f in top.plans]==sorted(f.per_sample for f in top.plans) and top.plans[0].ms <= r.plans[0].ms*(1+1e-9)
    none = search(s, h, p, replace(a, memory_constraint=4))
    need = none.engine.leanest()[0]
    assert none.plan is None and need>4*1024 and search(s, h, p, replace(a, memory_constraint=need*1.0001/1024)).prediction.fits

@pytest.mark.parametrize('meta', [{}, dict(communicator_mib=0.), dict(communicator_mib=300.)])
def test_where_no_communicator_costs_or_none_binds_there_is_one_search(meta):
    s, h, p, a = setup(LLAMA, memory_constraint=78 if meta.get('communicator_mib') else 36, settle_bsz=64, sp_space='tp+sp', sequence_parallel=True)
    plain, r = Engine(s, h, p, a), search(s, replace(h, meta=h.meta|meta), p, a)
    assert [(f.ms, f.plan) for f in r.plans]==[plain.tidied(f.ms, f.plan) for f in plain.run()] and r.engine.bound==plain.bound and len(r.engine.log)==len(plain.log)

@pytest.mark.parametrize('gpus, mib, tied', [(2, 700., False), (4, 30., True)])
def test_with_communicators_the_answer_fits_and_is_within_its_gap(gpus, mib, tied):
    "Every plan of a small space, priced by `predict`: something is found wherever something fits, and the fastest is not further away than the result says"
    spec = ModelSpec.from_size('gpt_hf' if tied else 'llama_hf', None, 2, 512, hidden_size=1024, num_attention_heads=16, vocab_size=8192)
    s, h, p, a = setup(spec, gpus=gpus, memory_constraint=40, settle_bsz=8, sp_space='tp+sp', sequence_parallel=True, max_tp_deg=4)
    assert spec.tied==tied
    h, rows = costly(h, mib), []
    e = Engine(s, h, p, a)
    for pp in (1, 2):
        for kind, chunks, v in product(('pipedream_flush',) if pp==1 else ('gpipe', 'pipedream_flush'), (1, 2, 4, 8), e.vocabularies(pp)):
            ok = [t for t in e.strategies(pp) if (8//chunks)%t.dp(gpus//pp)==0]
            if (8//chunks)%v.dp(gpus//pp): continue
            for layer in product(ok, repeat=2):
                q = predict(Plan(layer, v, pp, (1,)*pp if pp>1 else (2,), kind, chunks, 8), pricer=e.pricer)
                rows.append((q.iteration_ms, q.peak_mib, max(t.communicators for t in q.stages)))
    ms, peak, more = np.array(rows).T
    assert len({*more})>=(3 if gpus>2 else 2)
    order, bare = np.argsort(ms), peak-more
    tempting = [i for i, least in zip(order[1:], np.minimum.accumulate(bare[order])) if bare[i]<least-1e-6 and more[i]] + [order[0]] # nothing faster needs less but for communicators
    rng, pushed = np.random.default_rng(gpus), 0
    for n in range(12):
        i = rng.choice(tempting) if n%2 else rng.choice(order[:len(ms)*(n+1)//12])
        budget = max(peak[i] - more[i]*(0, rng.random(), 0, 1)[n%4], peak.min()) + 0.01 # all of a plan, not quite its communicators, or all but these
        tight = replace(a, memory_constraint=budget/1024)
        r, want = search(s, h, p, tight), ms[peak<=budget].min()
        assert r.plan and r.prediction.fits and r.prediction.peak_mib<=budget and not r.engine.outside(r.plan), budget
        assert want*(1-1e-9) <= r.plans[0].ms and r.plans[0].ms*(1-r.gap) <= want*(1+1e-9), (budget, want, r.plan)
        once = Engine(s, h, p, tight)
        pushed += once.inside(once.run()[0].plan)>0
    assert pushed>0
    assert not search(s, h, p, replace(a, memory_constraint=peak.min()*.999/1024)).plan

def test_a_report_says_where_a_slow_host_may_set_the_time():
    "Small compiled layers are joined, and what Python takes for them is not in the price"
    spec = ModelSpec.from_size('llama_hf', 'llama-0.3b', seq=2048)
    def of(ms, compiled):
        m = ModelProfile.analytic(spec, 'h200')
        m = replace(m, meta=dict(machine=dict(compile=compiled)), points=tuple(replace(q, host_ms=ms) if q.kind=='layer' else q for q in m.points))
        p = predict(Plan.uniform(spec.n_layers, 1, 1, 1, chunks=4, global_train_batch_size=16), spec, HardwareProfile.analytic('h200', 1, 1), m, RunOptions('bf16', compile=compiled))
        return p, [b for b in binds(p) if b.startswith('host:')]
    assert of(.5, True)[1]==of(.5, False)[1]==[]
    p, said = of(3., True)
    assert p.step_ms==p.iteration_ms and len(said)==1 and 'joined' in said[0] and '288 ms' in said[0]
    p, said = of(3., False)
    assert p.iteration_ms>288 and len(said)==1 and 'joined' not in said[0]
