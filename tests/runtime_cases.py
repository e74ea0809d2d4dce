"What several processes show about the runtime, besides that every plan trains the same model"
import functools, gc, math, re, warnings, weakref
from collections import Counter

import torch
from torch.distributed.tensor import DTensor

from equal import CONFIGS, SEQ, assert_replicas_equal, batch, box, held, inputs, micro_batches, spec_of, whole as put_together
from galvatron.cost.pipeline import in_flight
from galvatron.model_spec import LayerType, ModelSpec
from galvatron.plan import LayerStrategy as S, Plan, RunOptions, VocabStrategy as V
from galvatron.runtime.collectives import count_collectives, local
from galvatron.runtime.groups import Place
from galvatron.runtime.overlap import EXCHANGES, SHARED
from galvatron.runtime.optim import LossScaler, adamw, clip_grad_norm
from galvatron.runtime.parallelise import Context
from galvatron.runtime.schedule import Pipeline
from galvatron.runtime.stage import StageModel

def rows(model, step=0):
    tokens, labels = batch(step, model.plan.global_bsz)
    return [dict(tokens=tokens[list(r)], labels=labels[list(r)]) for r in model.rows()]

def whole(t): return (t.full_tensor() if isinstance(t, DTensor) else t).detach()

def collectives_of_a_step():
    "By type and flag: what is gathered and reduced in a step of 4 micro-batches, 6 units"
    seen = {}
    for dp in 'ddp', 'zero2', 'zero3':
        for asynchronous in True, False:
            plan = Plan((S(dp_type=dp),)*4, V(embed_sdp=dp=='zero3'), chunks=4, global_bsz=16, default_dp_type='ddp' if dp=='zero3' else dp)
            pipeline = Pipeline(StageModel(spec_of('llama'), plan, RunOptions('fp32', async_grad_reduce=asynchronous)))
            pipeline.step(rows(pipeline.model))
            with count_collectives() as calls: pipeline.step(rows(pipeline.model))
            seen[dp,asynchronous] = Counter(c.kind for c in calls.calls if c.nbytes>8), sum(c.nbytes for c in calls.calls if c.kind in ('all_reduce', 'reduce_scatter') and c.nbytes>8), calls.nbytes('all_gather')
    sizes = [sum(p.numel() for p in u.module.parameters()) for u in StageModel(spec_of('llama'), plan, RunOptions('fp32')).units] # DTensors: the whole
    n, last = sum(sizes), sum(sizes[-2:])                                  # the last two of the model stay from their forward to their backward
    for (dp,asynchronous),(count,nbytes,gathered) in seen.items():
        times = 1 if asynchronous else 4
        assert count[{'ddp':'all_reduce'}.get(dp, 'reduce_scatter')]==6*times, (dp, asynchronous, count)
        assert abs(nbytes/(4*n*times)-1)<.01, (dp, asynchronous, nbytes, n)
        gathers, numbers = dict(ddp=(0, 0), zero2=(6, n), zero3=(2*6*4-2*4, 4*(2*n-last)))[dp]
        assert count['all_gather']==gathers and abs(gathered-4*numbers)<=.01*gathered, (dp, asynchronous, count, gathered, n)
    return {k:dict(c) for k,(c,*_) in seen.items()}

def tensor_parallel_exchanges():
    "Two exchanges forward and two backward in a layer; shares of replicated gradients in one message a step"
    for sp in False, True:
        plan = Plan((S(4),)*4, V(4), chunks=2, global_bsz=8)
        pipeline = Pipeline(StageModel(spec_of('gpt'), plan, RunOptions('fp32', sequence_parallel=sp)))
        with count_collectives() as calls: pipeline.step(rows(pipeline.model))
        act = 4*SEQ*32*4                                                # bytes of a micro-batch's activation
        got = Counter(c.kind for c in calls.calls if c.nbytes==act)
        ends = 2                                                        # embedding leaves, head enters
        want = dict(all_gather=2*(4*2*2+4*2+ends), reduce_scatter=2*(4*2*2+ends)) if sp else dict(all_reduce=2*(4*2*2+ends))
        assert got==want, (sp, got, want)

def low_precision():
    "bf16 and fp16 follow fp32 under any plan; at rest everything is in single precision"
    plans = [Plan((S(2, dp_type='zero3'), S(4), S(2, ulysses=True), S()), V(2), chunks=2, global_bsz=16),
             Plan((S(dp_type='zero3'), S(4, recompute=True), S(4), S(4)), V(4), chunks=2, global_bsz=16),
             Plan((S(), S(2), S(2, recompute=True), S(dp_type='zero3')), V(2), 2, (3, 1), 'pipedream_flush', 4, 16)]
    for kind,plan in zip(('llama', 'gpt', 'gpt'), plans):
        losses = {}
        for precision in 'fp32', 'bf16', 'fp16':
            model = StageModel(spec_of(kind), plan, RunOptions(precision, sequence_parallel=plan.pp_deg==1))
            pipeline, opt, scaler = Pipeline(model), adamw(model, lr=1e-2), LossScaler(2.**10)
            losses[precision] = []
            for step in range(2):
                scale = scaler.tensor(model.place.device) if precision=='fp16' else None
                losses[precision].append(pipeline.step(rows(model, step), scale).item())
                for u in model.units:                                       # of several micro-batches, what is reduced once may stay as it was sent
                    assert all(p.dtype==torch.float32 and p.grad.dtype in (torch.float32, model.dtype if u.sharded else None) for p in u.module.parameters())
                if scale is None:
                    clip_grad_norm(model, 1.)
                    opt.step()
                else: assert scaler.step(model, opt, 1.)[1]
                opt.zero_grad()
        for precision in 'bf16', 'fp16':
            assert all(abs(a-b)<.02*b for a,b in zip(losses[precision], losses['fp32'])), (kind, str(plan), losses)
        assert losses['bf16']!=losses['fp32']

def reduction_in_single_precision():
    "reduce_in_fp32 doubles the bytes of every reduction in bf16, and of nothing else; entropy_in_fp32=False changes the loss in its last digits"
    plan, seen, losses = Plan((S(dp_type='zero3'), S(dp_type='zero3')), V(embed_sdp=True), chunks=1, global_bsz=8), {}, {}
    for wide in False, True:
        for entropy in True, False:
            pipeline = Pipeline(StageModel(spec_of('llama', 2), plan, RunOptions('bf16', reduce_in_fp32=wide, entropy_in_fp32=entropy)))
            with count_collectives() as calls: losses[wide,entropy] = pipeline.step(rows(pipeline.model)).item()
            seen[wide] = [calls.nbytes(k) for k in ('reduce_scatter', 'all_gather')]
    assert seen[True][0]==2*seen[False][0]>0 and seen[True][1]==seen[False][1], seen
    assert losses[False,True]==losses[True,True] and 0<abs(losses[True,False]-losses[True,True])<.02*losses[True,True], losses

def initial_weights_do_not_depend_on_the_plan():
    "Bit by bit those of one process, on every rank; and the first loss is the logarithm of the vocabulary"
    for kind in 'llama', 'gpt':
        config = {k:v for k,v in CONFIGS[kind].items() if k!='initializer_range'}
        spec = ModelSpec.from_hf(config, seq=SEQ)
        alone = StageModel(spec, Plan((S(),)*4, global_bsz=8), RunOptions('fp32'), Place.solo())
        truth = put_together(held(alone, lambda p: p))
        assert abs(Pipeline(alone).step(rows(alone)).item()/math.log(spec.vocab)-1)<.02
        for plan in Plan((S(4), S(2, consecutive=False, dp_type='zero3'), S(2, ulysses=True), S(dp_type='zero3')), V(4), global_bsz=8), Plan((S(2), S(), S(2), S()), V(2, embed_sdp=True), 2, (1, 3), global_bsz=8):
            model = StageModel(spec, plan, RunOptions('fp32'))
            assert all(torch.equal(t, truth[name][box(lo, t)]) for name,_,lo,t in held(model, lambda p: p)), (kind, str(plan))
            mine = [local(p) for p in model.parameters()]
            assert sum(t.untyped_storage().nbytes() for t in mine)<1.1*sum(t.nbytes for t in mine), 'parts keep the whole in memory'

def large_messages_do_not_block():
    "8 MiB between stages that compute next to nothing: both schedules, 2 and 4 stages, fewer and more micro-batches than stages"
    forward, shapes = StageModel.forward, []
    def light(self, x, *args):
        y = x[0]*1 if x else local(next(self.parameters())).sum()*torch.ones(shapes[0])
        return y.mean(dtype=torch.float64) if self.place.last else (y,)
    StageModel.forward = light
    try:
        for pp,layer in (2, S(2)), (4, S()):
            for kind in 'gpipe', 'pipedream_flush':
                for chunks in 3, 8:
                    pipeline = Pipeline(StageModel(spec_of('llama'), Plan((layer,)*4, V(layer.width), pp, (), kind, chunks, 4096*chunks), RunOptions('fp32')))
                    shapes[:] = pipeline.shapes[1] or pipeline.shapes[0]
                    assert math.prod(shapes[0])*layer.width==2**21          # single precision
                    loss = pipeline.step([dict(tokens=None, labels=torch.zeros(1, 1, dtype=torch.long))]*chunks)
                    assert loss.isfinite()
    finally: StageModel.forward = forward

def overflow_is_skipped():
    "An infinite gradient on one rank makes every rank skip the step and halve the scale"
    model = StageModel(spec_of('llama'), Plan((S(), S(2), S(), S()), pp_deg=2, chunks=2, global_bsz=8), RunOptions('fp16'))
    pipeline, opt, scaler = Pipeline(model), adamw(model), LossScaler(2.**100)
    before = [p.detach().clone() for p in model.parameters()]
    pipeline.step(rows(model), scaler.tensor('cpu'))
    norm, stepped = scaler.step(model, opt, 1.)
    assert not stepped and scaler.scale==2.**99 and not norm.isfinite()
    assert all(torch.equal(whole(a), whole(b)) for a,b in zip(before, model.parameters()))

def dropout_follows_what_is_computed():
    "Masks agree where ranks compute the same and differ elsewhere, recomputation repeats them, evaluation has none"
    config = dict(CONFIGS['gpt'], attn_pdrop=.1, resid_pdrop=.1, embd_pdrop=.1)
    spec, losses = ModelSpec.from_hf(config, seq=SEQ), {}
    for sp in False, True:
        for recompute in False, True:
            plan = Plan((S(4, recompute=recompute), S(2, recompute=recompute))*2, V(2), chunks=2, global_bsz=8)
            model = StageModel(spec, plan, RunOptions('fp64', sequence_parallel=sp))
            pipeline, opt = Pipeline(model), adamw(model, lr=1e-2)
            run = []
            for step in range(2):
                run.append(pipeline.step(rows(model, step)).item())
                opt.step(); opt.zero_grad()
            losses[sp,recompute] = run, pipeline.evaluate(rows(model)).item(), pipeline.evaluate(rows(model)).item()
            assert_replicas_equal(model)
        (a,ea,eb),(b,ec,_) = losses[sp,False], losses[sp,True]
        assert all(abs(x-y)<1e-12*x for x,y in zip(a, b)) and ea==eb and abs(ea-ec)<1e-12*ea, losses
        assert a[0]!=ea
    return losses

def nothing_stays_alive():
    "After a step no activation is alive, and what it returned has no graph"
    plan = Plan((S(2), S(), S(2, recompute=True), S(dp_type='zero3')), V(2), 2, (), 'pipedream_flush', 8, 32)
    model = StageModel(spec_of('llama'), plan, RunOptions('fp32', sequence_parallel=True))
    pipeline, refs = Pipeline(model), []
    for u in model.units: u.module.register_forward_hook(lambda m, a, out: refs.append(weakref.ref(out)))
    loss = pipeline.step(rows(model))
    gc.collect()
    assert refs and not any(r() is not None for r in refs) and not loss.requires_grad

def stages_hold_what_the_schedule_says():
    "Activations of a layer that are alive at once: as many as the cost model counts for the stage"
    found = {}
    for pp,layer in (4, S()), (2, S(2)), (1, S(4)):
        for kind in 'gpipe', 'pipedream_flush':
            model = StageModel(spec_of('llama'), Plan((layer,)*4, V(layer.width), pp, (), kind, 6, 24), RunOptions('fp32'))
            pipeline, refs, most = Pipeline(model), [], [0]
            def note(m, a, out):
                refs.append(weakref.ref(out[0] if isinstance(out, tuple) else out))
                most[0] = max(most[0], sum(r() is not None for r in refs))
            model.units[0].module.register_forward_hook(note)
            pipeline.step(rows(model))
            found[pp,kind] = len(refs), most[0], in_flight(model.place.stage, pp, 6, kind)
    assert all(n==6 and most==want for n,most,want in found.values()), found

def zero3_gathers_one_layer_ahead():
    "While a unit runs, forward or backward, only it and the next one have whole parameters; after a backward nobody has whole gradients if each is reduced"
    model = StageModel(spec_of('llama'), Plan((S(dp_type='zero3'),)*4, V(embed_sdp=True), chunks=2, global_bsz=8), RunOptions('fp32', async_grad_reduce=False))
    found = []
    def whole_units(): return sum(any(w.untyped_storage().size() for w in u.copies.copies.values()) for u in model.units)
    def note(m, a, out):
        found.append(whole_units())
        if out.requires_grad: out.register_hook(lambda g: found.append(whole_units()))
    assert all(u.sharded for u in model.units)
    for u in model.units[1:-1]: u.module.register_forward_hook(note)
    Pipeline(model).step(rows(model))
    assert len(found)==2*2*4 and set(found)=={1, 2} and whole_units()==0, found
    assert all(p.grad.to_local().numel()<=-(-p.shape[0]//4)*p[0].numel() for p in model.parameters())

def gathered_inputs_are_not_saved():
    "Megatron-SP: between forward and backward a layer holds slices only"
    model = StageModel(spec_of('llama'), Plan((S(4),)*4, V(4), global_bsz=4), RunOptions('fp32', sequence_parallel=True))
    refs, enter = [], Context.enter
    def watched(self, x):
        y = enter(self, x)
        refs.append(weakref.ref(y))
        return y
    Context.enter = watched
    micro = rows(model)[0]
    try: loss = model(None, SEQ, micro['tokens'], micro['labels'])
    finally: Context.enter = enter
    gc.collect()
    alive = sum(r() is not None for r in refs)
    assert len(refs)==9 and alive==1, (len(refs), alive)               # the head's matrix keeps its input
    loss.backward()

def two_models_at_once():
    "Steps of two models in turn give what each gives alone"
    plans = [Plan((S(2), S(), S(4), S(2, consecutive=False)), V(2), chunks=2, global_bsz=8), Plan((S(), S(2), S(2, ulysses=True), S()), pp_deg=2, chunks=2, global_bsz=8)]
    def make(p): return Pipeline(StageModel(spec_of('llama'), p, RunOptions('fp64')))
    alone = []
    for p in plans:
        q = make(p)
        alone.append([q.step(rows(q.model, i)).item() for i in range(2)])
    pair = [make(p) for p in plans]
    assert [list(l) for l in zip(*([q.step(rows(q.model, i)).item() for q in pair] for i in range(2)))]==alone

def parts_without_a_gradient():
    "Frozen units and parameters, and a norm that has no part in the loss of some ranks and micro-batches: gradients are those of one process"
    spec, layers = spec_of('llama', 3), lambda dp, again: tuple(S(dp_type=dp, recompute=again) for _ in range(3))
    def gradients(plan, frozen, place=None, **options):
        model = StageModel(spec, plan, RunOptions('fp64', **options), place)
        for g in model.named_global_parameters(): g.param.requires_grad_(not re.search(frozen, g.name))
        pipeline, norm, now = Pipeline(model), model.units[2].module.input_layernorm, []
        forward, run = norm.forward, pipeline._forward
        def without(x):
            w = norm._parameters['weight']
            norm._parameters['weight'] = w.detach() if now[-1] in (1, 2, 5) else w
            try: return forward(x)
            finally: norm._parameters['weight'] = w
        norm.forward, pipeline._forward = without, lambda *args: now.append(args[-1][1]*model.place.world+model.place.rank) or run(*args) # of the eighths of the batch
        pipeline.step(rows(model))
        assert all((p.grad is not None)==p.requires_grad for p in model.parameters())
        return held(model, lambda p: p.grad if p.requires_grad else torch.zeros_like(p, requires_grad=False))
    for i,frozen in enumerate(['^$', 'embed', 'embed|layers.0', 'layers.1', 'layers.2|model.norm|lm_head', '^(?!.*layers.[01].(input|mlp.up))', 'q_proj|post|lm_head']):
        truth = put_together(gradients(Plan(layers('ddp', False), chunks=8, global_bsz=16), frozen, Place.solo()))
        for j,dp in enumerate(('ddp', 'zero2', 'zero3')):
            plan = Plan(layers(dp, bool((i+j)%2)), V(embed_sdp=dp=='zero3'), chunks=2, global_bsz=16, default_dp_type='ddp' if dp=='ddp' else 'zero2')
            for name,_,lo,t in gradients(plan, frozen, async_grad_reduce=(i+j)%4<2): torch.testing.assert_close(t, truth[name][box(lo, t)], rtol=1e-11, atol=1e-13, msg=lambda m: f'{frozen} {dp} {name}: {m}')

def weights_written_between_steps():
    "By `load_state_dict`, right after an optimizer that renewed the copies: the next step computes with them"
    for layer in S(), S(2), S(dp_type='zero2'), S(2, dp_type='zero3'), S(4):
        plan = Plan((layer,)*2, V(layer.width), chunks=2, global_bsz=8, default_dp_type='ddp' if layer.dp_type=='ddp' else 'zero2')
        model, fresh = (StageModel(spec_of('gpt', 2), plan, RunOptions('bf16')) for _ in range(2))
        optimizer = adamw(model, lr=1e-2)
        Pipeline(model).step(rows(model))
        optimizer.step(); optimizer.zero_grad()
        other = {k: v.detach()*1.5 for k,v in model.state_dict().items()}
        losses = []
        for m in model, fresh:
            m.load_state_dict(other)
            losses.append(Pipeline(m).step(rows(m, 1)).item())
        assert losses[0]==losses[1], (str(plan), losses)

def evaluation_at_any_time():
    "In inference mode before the first step, and between a forward and its backward: what is trained stays the same, bit by bit"
    for i,layer in enumerate((S(), S(dp_type='zero2'), S(dp_type='zero3'), S(2, dp_type='zero2'), S(4))):
        plan, trained = Plan((layer, S(layer.width, False, True, layer.dp_type, True)), V(layer.width), global_bsz=8, default_dp_type='ddp' if layer.dp_type=='ddp' else 'zero2'), []
        for evaluates in False, True:
            model = StageModel(spec_of('llama', 2), plan, RunOptions('bf16', sequence_parallel=layer.width==2))
            pipeline, optimizer, (micro,) = Pipeline(model), adamw(model, lr=1e-2), rows(model, 1)
            if evaluates:
                with torch.inference_mode(): pipeline.evaluate(rows(model))
            pipeline.step(rows(model))
            optimizer.step(); optimizer.zero_grad()
            loss = model.train()(None, SEQ, micro['tokens'], micro['labels'], .01)
            if evaluates:
                pipeline.evaluate(rows(model))
                with torch.no_grad(): model(None, SEQ, micro['tokens'])
            loss.backward()
            model.finish_gradients()
            assert not any(w.untyped_storage().size() for u in model.units if u.copies for w in u.copies.copies.values())
            optimizer.step()
            trained.append([local(p).detach() for p in model.parameters()])
        assert all(map(torch.equal, *trained)), str(plan)

def two_steps_add_up():
    "Gradients that are still there when a step begins are added to once: those of tied tables, shares of norms, tables that layers share, too"
    for kind,plan in ('gpt', Plan((S(2), S(4)), V(2), global_bsz=8)), ('gpt', Plan((S(2, dp_type='zero3'),)*2, V(2), 2, global_bsz=8, chunks=2)), ('t5', Plan((S(2, dp_type='zero2'), S(dp_type='zero2')), global_bsz=8, default_dp_type='zero2')):
        grads = []
        for together in False, True:
            model = StageModel(spec_of(kind, 2), plan, RunOptions('fp64', sequence_parallel=True))
            pipeline = Pipeline(model)
            for step in range(2):
                pipeline.step(micro_batches(model, inputs(model.spec, step, 8)))
                if together and step==0: continue
                grads.append([local(p.grad).clone() for p in model.parameters()])
                model.zero_grad()
        for a,b,both in zip(*grads): torch.testing.assert_close(both, a+b, rtol=1e-12, atol=1e-14)

def messages_wait_for_attention():
    "Compiled layers that share parameters: the next gather begins at a forward's attention, reduction and gather at a backward's; the numbers stay"
    from galvatron.runtime import overlap
    from torch._dynamo.backends.common import aot_autograd
    def through(graph, example):
        SHARED['post_grad_custom_post_pass'](graph.graph)
        graph.recompile()
        return graph
    compiler, backend, was, waiting, losses = torch.compile, aot_autograd(fw_compiler=through, bw_compiler=through), overlap.turn, [], {}
    def noted():
        waiting.append(len(overlap._waiting))
        was()
    torch.compile, overlap.turn = lambda f, dynamic=None, options=None: compiler(f, dynamic=dynamic, backend=backend), noted
    try:
        for compile in False, True:
            plan = Plan((S(dp_type='zero3'),)*3, V(embed_sdp=True), chunks=2, global_bsz=8)
            pipeline = Pipeline(StageModel(spec_of('llama', 3), plan, RunOptions('fp64', async_grad_reduce=False, compile=compile)))
            losses[compile] = [pipeline.step(rows(pipeline.model)).item() for _ in range(2)]
            losses[compile].append(sum(whole(p.grad).square().sum() for p in pipeline.model.parameters()).item())
            assert waiting==(2*2*[1, 1, 1, 2, 2, 2] if compile else []), waiting
    finally: torch.compile, overlap.turn = compiler, was
    assert all(abs(a-b)<1e-12*b for a,b in zip(losses[True], losses[False])), losses

def compiled_layers():
    "Compiled layers compute the same, one graph for each division of the layer, without breaks and without compiling again"
    import torch._dynamo as dynamo
    from torch._dynamo.backends.common import aot_autograd
    hidden = []                                      # products between the start of a message and the wait for it
    def ordered(options, graph, example):
        if options: options['post_grad_custom_post_pass'](graph.graph)
        names = [str(n.target) for n in graph.graph.nodes]
        starts = [i for i,n in enumerate(names) if 'c10d_functional' in n and 'wait' not in n]
        waits = [next(i for i,n in enumerate(graph.graph.nodes) if n in list(graph.graph.nodes)[a].users) for a in starts]
        hidden.append(sum('aten.mm' in n or 'attention' in n for a,b in zip(starts, waits) for n in names[a:b]))
        graph.recompile()
        return graph
    inductor, backends = torch.compile, [aot_autograd(fw_compiler=f, bw_compiler=f) for f in (functools.partial(ordered, o) for o in (None, EXCHANGES))]
    def lowered(f, dynamic=None, options=None): return inductor(f, dynamic=dynamic, backend=backends[options is EXCHANGES])
    torch.compile, least, LayerType.halves_from = lowered, LayerType.halves_from, lambda t, width: 2 # small layers on two halves too
    try:
        plan = Plan((S(2), S(2), S(2), S(2, ulysses=True), S(2, recompute=True), S(2)), V(2), chunks=2, global_bsz=8)
        losses = {}
        for compile in False, True:
            pipeline = Pipeline(StageModel(spec_of('llama', 6), plan, RunOptions('fp64', sequence_parallel=True, compile=compile)))
            dynamo.utils.counters.clear()
            losses[compile] = [pipeline.step(rows(pipeline.model)).item() for _ in range(2)]
            grads = [whole(p.grad) for p in pipeline.model.parameters()]
            losses[compile].append(sum(g.square().sum() for g in grads).item())
        stats = dynamo.utils.counters
        assert not stats['graph_break'] and stats['stats']['unique_graphs']==3, dict(stats) # three layers in one graph, one on its own, Ulysses
        assert all(abs(a-b)<1e-12*b for a,b in zip(losses[True], losses[False])), losses
        assert min(hidden)>0, hidden                 # of every graph, forward and backward
        plan, spec, own = Plan((S(2), S(2, ulysses=True)), V(2), global_bsz=8), spec_of('llama', 2), []
        positions = torch.arange(spec.seq)[None].repeat(8, 1)
        positions[1::2] %= 5                         # samples whose positions are not those of their neighbours: no two halves
        for compile in False, True:
            pipeline = Pipeline(StageModel(spec, plan, RunOptions('fp64', sequence_parallel=True, compile=compile)))
            own.append(pipeline.step([dict(m, position_ids=positions[list(r)]) for m,r in zip(rows(pipeline.model), pipeline.model.document_rows())]).item())
        assert abs(own[0]-own[1])<1e-12*own[0], own
        dynamo.utils.counters.clear()                # ranks that drop alike in one place and apart in another need seeds within the layer
        pipeline = Pipeline(StageModel(ModelSpec.from_hf(dict(CONFIGS['gpt'], n_layer=1, attn_pdrop=.1), seq=SEQ), Plan((S(2),), V(2), global_bsz=8), RunOptions('fp64', compile=True)))
        pipeline.step(rows(pipeline.model))
        assert not dynamo.utils.counters['stats']
    finally: torch.compile, LayerType.halves_from = inductor, least

CASES = [collectives_of_a_step, tensor_parallel_exchanges, low_precision, reduction_in_single_precision, initial_weights_do_not_depend_on_the_plan, large_messages_do_not_block, overflow_is_skipped, dropout_follows_what_is_computed, nothing_stays_alive,
         gathered_inputs_are_not_saved, two_models_at_once, stages_hold_what_the_schedule_says, zero3_gathers_one_layer_ahead,
         parts_without_a_gradient, weights_written_between_steps, evaluation_at_any_time, two_steps_add_up]
ON_TWO = [compiled_layers, messages_wait_for_attention] # compiling is what costs, on every rank

def run_all(cases):
    import time, traceback
    warnings.simplefilter('ignore')
    out = {}
    for case in map(globals().get, cases):
        start = time.time()
        try: out[case.__name__] = True, case(), time.time()-start
        except Exception:
            out[case.__name__] = False, traceback.format_exc(), 0
            break
    return out
