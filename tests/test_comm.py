"Groups, redistribution and collectives on four processes, in float64: one launch, many cases; gloo, or NCCL on the GPUs of this machine if there are two or four"
import itertools, traceback, warnings

import pytest, torch
import torch.nn.functional as F
from torch import distributed as dist, nn

from galvatron.layout import Layout, exchange, kind
from galvatron.plan import GalvatronError, LayerStrategy as S, Plan, RunOptions, VocabStrategy
from galvatron.ranks import rank_sets
from galvatron.runtime import collectives as C
from galvatron.runtime import groups
from galvatron.runtime.groups import Place
from galvatron.runtime.launch import run_ranks
from galvatron.runtime.redistribute import redistribute
from galvatron.runtime.sharding import SharedCopies, beside

SP = RunOptions(sequence_parallel=True)
close = dict(rtol=1e-12, atol=1e-13)

def rand(*shape, seed=0): return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, device='cpu').to(torch.get_default_device())

def n_groups(): return len(set(map(tuple, map(dist.get_process_group_ranks, dist.distributed_c10d._world.pg_names))))

def every_layout(n):
    widths = [w for w in range(1, n+1) if n%w==0]
    return list(dict.fromkeys(Layout.of(S(w, u, c), n, sp) for w,u,c,sp in itertools.product(widths, *[(False,True)]*3)))

# --- what runs on each rank

def groups_are_shared():
    "As many groups as rank sets, none added by a second model or by meshes; p2p pairs and meshes as the plan says"
    short, long = (Plan((S(2, dp_type='zero3'), S(2, consecutive=False))*k, VocabStrategy(2), pp_deg=1) for k in (1, 40))
    place = Place(short)
    n = n_groups()
    Place(long), Place(short)
    assert n_groups()==n and not groups._made['met'] # nobody sends messages ahead
    want = [s for s in rank_sets(long, place.world) if place.rank in s]
    for s in long.layers[:2]: place.mesh(s)
    assert n_groups()==n==len({tuple(sorted(s)) for s in want} | {tuple(range(place.world))})
    for s in long.layers[:2]:
        m = place.mesh(s)
        assert [m.size(i) for i in range(3)]==([1,place.world//2,2] if s.dp_type=='zero3' else [place.world//2,1,2])
        tp, t, sp, _ = place.axes(s)
        assert sp is None and m['tp'].get_local_rank()==t==dist.get_group_rank(tp, place.rank)
        assert dist.get_process_group_ranks(m.get_group('tp'))==dist.get_process_group_ranks(tp)
    mixed = Plan((S(place.world, ulysses=True, dp_type='zero3'), S(dp_type='zero3')), global_bsz=place.world) # the same ranks exchange activations and parameters
    place, far = Place(mixed), dist.group.WORLD
    for s in mixed.layers:
        data = place.mesh(s)['shard'].get_group()
        assert dist.get_process_group_ranks(data)==dist.get_process_group_ranks(far) and data is not (place.axes(s)[2] or far)

def pipeline_neighbours():
    plan = Plan((S(dist.get_world_size()//2),)*4, pp_deg=2, global_bsz=8)
    place = Place(plan, tied=True)
    assert groups._made['met']=={s for s in rank_sets(plan, place.world, tied=True) if len(s)==2} # in every group of two, also those made for a plan without stages
    assert (place.stage, place.me)==divmod(dist.get_rank(), place.N)
    peer, group = place.neighbour(+1 if place.first else -1)
    assert peer==(place.rank+place.N)%place.world and place.neighbour(-1 if place.first else +1)==(None, None) and place.ends() is group
    t = torch.tensor([float(place.rank)])
    ops = [dist.P2POp(dist.isend, t, peer, group), dist.P2POp(dist.irecv, got := torch.empty(1), peer, group)]
    for w in dist.batch_isend_irecv(ops): w.wait()
    assert got.item()==peer
    with pytest.raises(GalvatronError, match='no such group'): place.group((0,1,2,3,4))

class AllGroups:
    "A place whose groups are all sets of ranks of the world, for layouts that no single plan brings together"
    def __init__(self):
        self.N, self.me, self.groups = dist.get_world_size(), dist.get_rank(), {}
        for k in range(2, self.N+1):
            for s in itertools.combinations(range(self.N), k): self.groups[s] = dist.new_group(list(s))
    def group(self, ranks): return self.groups.get(tuple(ranks))

def every_pair_of_layouts():
    "Values, gradients, contiguity and bytes of every change between two layouts"
    place, kinds = AllGroups(), {}
    full, weight = rand(8, 12, 3), rand(8, 12, 3, seed=1)
    for a,b in itertools.product(every_layout(place.N), repeat=2):
        x = a.local(full, place.me).clone().requires_grad_()
        with C.count_collectives() as seen: y = redistribute(x, a, b, place)
        assert torch.equal(y, b.local(full, place.me)) and (y is x or y.is_contiguous())
        (y*b.local(weight, place.me)).sum().backward()
        assert torch.equal(x.grad, a.local(weight, place.me)) # copies hold the whole gradient
        k,_ = kind(a, b, place.N)
        kinds[k] = kinds.get(k, 0)+1
        assert seen.count()<=1 and (k not in ('none','slice') or seen.count()==0)
        e = exchange(a, b, place.N)
        cells = max(sum(m.cells for m in e.moves if m.src!=m.dst and getattr(m, end)==place.me) for end in ('src','dst'))
        if seen.count('all_to_all'): assert seen.nbytes()==cells*full.nbytes//(e.grid_b*e.grid_s)
    assert set(kinds)=={'none','slice','all_gather','all_to_all'}
    with pytest.raises(GalvatronError, match='multiple of'): redistribute(rand(1, 3, 2), Layout(((place.N,'B'),)), Layout(((place.N,'S'),)), place)
    return kinds

def sample_numbers_survive():
    "A chain of strategies, all switches: after each change every rank holds the expected samples and positions"
    widths = [1, 2, dist.get_world_size(), 2, 1]
    ids = (torch.arange(4)[:,None]*100+torch.arange(8)).double()[...,None]
    for sp,flips in itertools.product((False,True), itertools.product((0,1,2), repeat=5)):
        if sum(flips)%7: continue # a seventh of all combinations
        plan = Plan(tuple(S(w, f==1, f!=2) for w,f in zip(widths, flips)), VocabStrategy(2), global_bsz=4)
        place = Place(plan, RunOptions(sequence_parallel=sp))
        cur = place.layout(plan.vocab.layer())
        x = cur.local(ids, place.me)
        for s in (*plan.layers, plan.vocab.layer()):
            x, cur = redistribute(x, cur, place.layout(s), place), place.layout(s)
            assert torch.equal(x, cur.local(ids, place.me))

def tensor_parallel_mlp():
    "Column then row parallel, plain and Megatron-SP, near and far groups: output, input and weight gradients of the undivided layer"
    for strategy,options in itertools.product((S(2), S(2, consecutive=False), S(dist.get_world_size())), (RunOptions(), SP)):
        place = Place(Plan((strategy,), VocabStrategy(1), global_bsz=4), options)
        g, t, _, _ = place.axes(strategy)
        up, down, bias, x = rand(12, 6), rand(6, 12), rand(12), rand(4, 8, 6)
        whole = [v.clone().requires_grad_() for v in (x, up, down, bias)]
        F.linear(F.linear(whole[0], whole[1], whole[3]).relu(), whole[2]).sin().sum().backward()
        lay, k = place.layout(strategy), strategy.width
        xl = lay.local(x, place.me).clone().requires_grad_()
        u, d, b = (v.chunk(k, dim)[t].clone().requires_grad_() for v,dim in ((up,0), (down,1), (bias,0)))
        with C.count_collectives() as seen:
            h = F.linear((C.gather_in if options.sequence_parallel else C.copy_in)(xl, g), u, b)
            y = (C.scatter_out if options.sequence_parallel else C.reduce_out)(F.linear(h.relu(), d), g)
            y.sin().sum().backward()
        if options.sequence_parallel: assert (seen.count('all_gather'), seen.count('reduce_scatter'))==(2, 2)
        else: assert seen.table()=={C.Call('all_reduce', k, y.nbytes):2}
        torch.testing.assert_close(xl.grad, lay.local(whole[0].grad, place.me), **close)
        for local,full,dim in (u, whole[1], 0), (d, whole[2], 1), (b, whole[3], 0):
            grads = local.grad.clone()
            peers = next(c for c in zip(*strategy.groups(place.N)[0]) if place.me in c)
            if len(peers)>1: dist.all_reduce(grads, group=place.group(peers))
            torch.testing.assert_close(grads, full.grad.chunk(k, dim)[t], **close)

def ulysses_exchange():
    strategy = S(2, ulysses=True)
    place = Place(Plan((strategy,), global_bsz=4))
    _, _, g, s = place.axes(strategy)
    full = rand(2, 8, 4, 3)
    x = full.chunk(2, 1)[s].clone().requires_grad_()
    y = C.all_to_all(x, g, 2, 1)
    assert torch.equal(y, full.chunk(2, 2)[s]) and y.is_contiguous()
    (back := C.all_to_all(y, g, 1, 2)).square().sum().backward()
    assert torch.equal(back, x) and torch.equal(x.grad, 2*x)
    with pytest.raises(GalvatronError, match='does not divide over 2'): C.all_to_all(rand(2, 4, 3, 2), g, 2, 1)

def vocabulary():
    "Embedding and cross entropy over 1, 2 and 4 shards of a vocabulary of 1003, padded: loss, gradients, inert padding, equal bits on all ranks"
    vocab, hidden, tokens = 1003, 5, 24
    ids = rand(2, tokens//2).mul(1e4).long()%vocab
    labels = ids.flip(0).clone()
    labels[0,:3] = -100
    labels[1,0] = vocab-1
    for width,padded in (1,1003), (2,1004), (4,1004), (4,1536): # in the last, the last rank holds nothing but padding
        if width>dist.get_world_size(): continue
        place = Place(Plan((S(),), VocabStrategy(width), global_bsz=4))
        g, t, _, _ = place.axes(VocabStrategy(width).layer())
        w = F.pad(rand(vocab, hidden), (0,0,0,padded-vocab), value=9.)
        whole = w[:vocab].clone().requires_grad_()
        emb = F.embedding(ids, whole)
        want = F.cross_entropy((emb.sin() @ whole.t()).flatten(0, 1), labels.flatten(), reduction='none').view_as(labels)
        want.sum().backward()
        for chunk in (0, 5):
            part = w.chunk(width)[t].clone().requires_grad_()
            x = C.reduce_out(C.vocab_embed(part, ids, g), g)
            torch.testing.assert_close(x, emb, **close)
            logits = C.copy_in(x.sin(), g) @ part.t()
            loss = C.vocab_cross_entropy(logits, labels, g, vocab, padded, chunk=chunk)
            torch.testing.assert_close(loss, want, **close)
            every = [torch.empty_like(loss) for _ in range(place.world)]
            dist.all_gather(every, loss.detach().contiguous())
            if width==place.world: assert all(torch.equal(e, loss) for e in every)
            loss.sum().backward()
            rows = slice(t*padded//width, (t+1)*padded//width)
            expect = F.pad(whole.grad, (0,0,0,padded-vocab))[rows]
            torch.testing.assert_close(part.grad, expect, **close)
            assert (part.grad[max(0, vocab-rows.start):]==0).all()
        if width==2:
            assert C.vocab_cross_entropy(logits.detach(), labels.masked_fill(labels==vocab-1, vocab), g, vocab, padded).isnan().sum()==1
            with pytest.raises(GalvatronError, match='columns each'): C.vocab_cross_entropy(rand(2, 12, 1004), labels, g, vocab, padded)

def shared_copies_are_counted():
    "What the copies of two units send for ddp, zero2 and zero3 over four micro-batches, by kind, size and bytes: gradients after each, or once"
    res, device = {}, torch.get_default_device()
    for dp_type,each in itertools.product(('ddp', 'zero2', 'zero3'), (True, False)):
        s = S(dist.get_world_size()//2, dp_type=dp_type)
        mesh = Place(Plan((s,), global_bsz=4, default_dp_type=dp_type)).mesh(s)
        layers = [nn.Linear(8, 8).double() for _ in range(2)]
        units = [SharedCopies(l, mesh, dp_type, torch.float64, torch.float64, beside(device)) for l in layers]
        with C.count_collectives() as seen:
            for u in units: u.begin(False)
            for i in range(4):
                x = rand(2, 8)
                for u,l in zip(units, layers):
                    u.last, u.due = i==3, each or i==3
                    x = F.linear(x, u.take(l.weight), u.take(l.bias))
                x.sum().backward()
        beside(device).settle()
        res[dp_type,each] = seen.table()
        assert all(p.grad is not None for l in layers for p in l.parameters()) and not any(w.untyped_storage().size() for u in units for w in u.copies.values() if not u.same)
    nbytes = (8*8+8)*8
    for each,times in (True, 8), (False, 2):
        assert res['ddp',each]=={C.Call('all_reduce', 2, nbytes):times}
        assert res['zero2',each]=={C.Call('all_gather', 2, nbytes):2, C.Call('reduce_scatter', 2, nbytes):times}
        assert res['zero3',each]=={C.Call('all_gather', 2, nbytes):8, C.Call('reduce_scatter', 2, nbytes):times} # stays from forward to backward, unless a unit lets go in between

def plain_calls_are_counted():
    with C.count_collectives() as seen:
        t = torch.ones(6)
        dist.all_reduce(t)
        dist.broadcast(t, 0)
        dist.all_gather([torch.empty(6) for _ in range(dist.get_world_size())], t)
        dist.barrier()
        peer = dist.get_rank()^1
        for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, t, peer), dist.P2POp(dist.irecv, torch.empty(6), peer)]): w.wait()
    n = dist.get_world_size()
    assert seen.table()=={C.Call(k, n, b):1 for k,b in dict(all_reduce=24, broadcast=24, all_gather=24*n, send=24, recv=24).items()}

CASES = [groups_are_shared, pipeline_neighbours, every_pair_of_layouts, sample_numbers_survive, tensor_parallel_mlp, ulysses_exchange, vocabulary,
         shared_copies_are_counted, plain_calls_are_counted]

def run_all():
    warnings.simplefilter('ignore')
    if torch.cuda.is_available() and dist.get_backend()=='nccl': torch.set_default_device(torch.cuda.current_device())
    res = {}
    for case in CASES:
        try: res[case.__name__] = True, case()
        except Exception:
            res[case.__name__] = False, traceback.format_exc()
            break # ranks would no longer be in step
    return res

@pytest.fixture(scope='module')
def results(): return run_ranks(run_all, {2:2, 3:2}.get(torch.cuda.device_count(), 4), timeout=240)

@pytest.mark.parametrize('case', [c.__name__ for c in CASES])
def test_four_ranks(results, case):
    for rank,res in enumerate(results):
        if case not in res: pytest.skip('an earlier case failed')
        ok,value = res[case]
        assert ok, f'rank {rank}:\n{value}'

def limits():
    import torch, torch.distributed as dist
    from galvatron.plan import LayerStrategy, Plan
    from galvatron.runtime.groups import Place
    place = Place(Plan((LayerStrategy(2), LayerStrategy(1)), pp_deg=2))
    return {str(g._get_backend(torch.device('cpu')).options._timeout) for g in (dist.group.WORLD, *place.neighbour(1-2*place.stage, False)[1:])}

def test_groups_share_the_limit_of_the_world(): assert all(len(found)==1 for found in run_ranks(limits, 4, backend='gloo'))
