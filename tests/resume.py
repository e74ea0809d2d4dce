"What the ranks of the checkpoint tests run: save under one plan, load under another, compare bit for bit"
import functools, random, threading, time, traceback, warnings
from pathlib import Path

import pytest, torch, torch.distributed as dist, torch.distributed.checkpoint

from galvatron.checkpoint import distributed as checkpoint
from galvatron.checkpoint.distributed import Checkpointer, show, state_pieces
from galvatron.checkpoint.folder import iterations
from galvatron.model_spec import ModelSpec
from galvatron.plan import GalvatronError, LayerStrategy, Plan, RunOptions, VocabStrategy
from galvatron.runtime import stage
from galvatron.runtime.optim import adamw, clip_grad_norm
from galvatron.runtime.parallelise import token_slice
from galvatron.runtime.schedule import Pipeline
from galvatron.runtime.stage import StageModel

SEQ, BSZ, VOCAB = 16, 16, 1003
CONFIGS = dict( # a vocabulary that nothing divides; separate, and tied to the embedding; packed query, key and value in the second
    llama=dict(model_type='llama', vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=False),
    gpt=dict(model_type='gpt2', vocab_size=VOCAB, n_embd=32, n_layer=4, n_head=8, n_positions=SEQ, bos_token_id=0, eos_token_id=0, attn_pdrop=0., resid_pdrop=0., embd_pdrop=0.))

def spec_of(kind, **more): return ModelSpec.from_hf(CONFIGS[kind]|more, seq=SEQ)

def draw(world, seed):
    "A random plan for four layers, and its options"
    r = random.Random(f'{world} {seed}')
    divisors = lambda n: [k for k in range(1, n+1) if n%k==0]
    pp = r.choice([p for p in divisors(world) if p<=4])
    n, dp_type = world//pp, r.choice(['ddp','zero2','zero3'])
    def layer():
        return LayerStrategy(r.choice(divisors(n)), r.random()<.3, r.random()<.6, r.choice([dp_type,'zero3']), r.random()<.2)
    division = r.choice({1:[(4,)], 2:[(1,3),(2,2),(3,1)], 4:[(1,1,1,1)]}[pp])
    vocab = VocabStrategy(r.choice(divisors(n)), r.random()<.3, r.random()<.5)
    plan = Plan(tuple(layer() for _ in range(4)), vocab, pp, division, r.choice(['gpipe','pipedream_flush']), r.choice([1,2]), BSZ, dp_type)
    return plan, RunOptions('fp64', sequence_parallel=r.random()<.5, async_grad_reduce=r.random()<.5, make_vocab_size_divisible_by=r.choice((1, 128)))

def make(kind, plan, options, seed=0, **more):
    model = StageModel(spec_of(kind, **more), plan, options, seed=seed)
    return model, adamw(model, lr=1e-2)

def train(model, optimizer, steps):
    pipeline, losses = Pipeline(model), []
    for step in steps:
        x = torch.randint(0, VOCAB, (BSZ, SEQ+1), generator=torch.Generator().manual_seed(step)).to(model.place.device)
        losses.append(pipeline.step([dict(tokens=x[list(r),:-1], labels=x[list(r),1:]) for r in model.rows()]).item())
        clip_grad_norm(model, .5)
        optimizer.step()
        optimizer.zero_grad()
    return losses

def views(model, optimizer): return {(n,o,i):v for n,p in state_pieces(model, optimizer, fill=True).items() for o,vs in p.parts.items() for i,v in enumerate(vs)}

def gathered(model, optimizer):
    "On rank 0, every tensor of model and optimizer, whole"
    mine = [(n, p.shape, o, v.clone()) for n,p in state_pieces(model, optimizer, fill=True).items() for o,vs in p.parts.items() for v in vs]
    every = [None]*dist.get_world_size()
    dist.all_gather_object(every, mine)
    out = {}
    for n,shape,o,v in sum(every, []):
        whole = out.setdefault(n, torch.full(shape, torch.nan, dtype=v.dtype))[tuple(slice(a, a+k) for a,k in zip(o, v.shape))]
        assert whole.isnan().all() or torch.equal(whole, v), f'{n}: copies differ'
        whole.copy_(v)
    assert not any(t.isnan().any() for t in out.values())
    return out

def same_as(truth, model, optimizer):
    "Whether every rectangle of every copy here is bit for bit what `truth` has; the names where not"
    return [n for (n,o,_),v in views(model, optimizer).items() if not torch.equal(v, truth[n][tuple(slice(a, a+k) for a,k in zip(o, v.shape))])]

def save_case(folder, name, kind, plan, options):
    "Two steps, a save, a third step; then a fresh process's model goes on from the checkpoint and must do the same"
    model, optimizer = make(kind, plan, options)
    train(model, optimizer, range(2))
    path = Path(folder)/name
    Checkpointer(path, model, optimizer).save(2, dict(samples=2*BSZ))
    truth = gathered(model, optimizer)
    losses = train(model, optimizer, range(2, 4))
    if dist.get_rank()==0: torch.save(dict(state=truth, loss=losses[0]), path/'truth.pt')
    again, again_opt = make(kind, plan, options, seed=1)
    got = Checkpointer(path, again, again_opt).load(same_plan=True)
    assert (got.iteration, got.state, got.optimizer, got.same_plan)==(2, dict(samples=2*BSZ), True, True)
    assert train(again, again_opt, range(2, 4))==losses
    here, there = views(model, optimizer), views(again, again_opt)
    assert here.keys()==there.keys() and not (bad := {k:(here[k]-there[k]).abs().max().item() for k in here if not torch.equal(here[k], there[k])}), bad

def load_case(folder, source, name, kind, plan, options):
    "Load what was saved under another plan and number of ranks; save it under this one; take the next step"
    truth = torch.load(Path(folder)/source/'truth.pt')
    model, optimizer = make(kind, plan, options, seed=2)
    Checkpointer(Path(folder)/source, model, optimizer).load()
    assert not (bad := same_as(truth['state'], model, optimizer)), bad
    path = Path(folder)/name
    Checkpointer(path, model, optimizer).save(2)
    if model.place.rank==0: torch.save(truth, path/'truth.pt')
    loss, = train(model, optimizer, [2])
    assert abs(loss-truth['loss'])<=1e-12*abs(loss), (loss, truth['loss'])

def run_cases(do, folder, cases):
    "Each case's error or None, until one fails"
    warnings.simplefilter('ignore')
    out = {}
    for case in cases:
        start = time.time()
        try: out[case[-4]] = globals()[do](folder, *case), None
        except Exception: out[case[-4]] = None, traceback.format_exc()
        if out[case[-4]][1]: break
        out[case[-4]] = time.time()-start, None
    return out

# --- one rank fails, files are damaged, saving in the background

def keep_going(folder):
    "Goes on to the last bit under each kind of data parallelism. Saves in the background, with a limit on how many are kept; an error on one rank is one on all and leaves what was there"
    for dp_type,embed_sdp in ('ddp', False), ('zero2', True), ('zero3', True): # 1003 words that four ranks do not divide
        layers = (LayerStrategy(dp_type=dp_type), LayerStrategy(2, dp_type=dp_type), LayerStrategy(dp_type='zero3'), LayerStrategy(dp_type=dp_type, recompute=True))
        save_case(Path(folder).parent/'kinds', dp_type, 'llama', Plan(layers, VocabStrategy(embed_sdp=embed_sdp), global_bsz=BSZ, default_dp_type=dp_type), RunOptions('fp64'))
    plan = Plan((LayerStrategy(dp_type='zero3'),)*4, pp_deg=2, chunks=2, global_bsz=BSZ)
    model, optimizer = make('gpt', plan, RunOptions('fp64'))
    saver = Checkpointer(folder, model, optimizer, keep_last=2, asynchronous=True)
    for i in range(1, 4):
        train(model, optimizer, [i])
        saver.save(i)
        if i==3: truth = {k:v.clone() for k,v in views(model, optimizer).items()}
        after, = train(model, optimizer, [10+i]) # while it is being written
    saver.wait()
    assert list(iterations(folder))==[2, 3] and not any(r['problems'] for r in show(folder, contents=True))
    again, again_opt = make('gpt', plan, RunOptions('fp64'), seed=3)
    loader = Checkpointer(folder, again, again_opt)
    assert loader.load().iteration==3
    assert all(torch.equal(v, truth[k]) for k,v in views(again, again_opt).items())
    assert train(again, again_opt, [13, 14])[0]==after                  # as the first run went on, to the last bit
    fails_on_one_rank(loader)
    own = Path(folder).parent/f'node-{model.place.rank//2}'             # as when two nodes each have a disk of their own
    with pytest.raises(GalvatronError, match='not saved: rank 0: .*__2_0.distcp is missing.*every node must see the same folder'): Checkpointer(own, model, optimizer).save(1)
    assert not iterations(own)
    dist.barrier()
    assert list(iterations(folder))==[2, 3] and not list(Path(folder).glob('.*.tmp'))
    if model.place.rank==3: (Path(folder)/'iter_0000003'/'__1_0.distcp').unlink()
    dist.barrier()
    with pytest.raises(GalvatronError, match='__1_0.distcp is missing'): loader.load()
    assert loader.load(iteration=2).iteration==2

def fails_on_one_rank(saver):
    "The disk of rank 2 is full"
    class Full(checkpoint.PieceWriter):
        def write_data(self, *args):
            if dist.get_rank()==2: raise OSError(28, 'No space left on device')
            return super().write_data(*args)
    real, checkpoint.PieceWriter = checkpoint.PieceWriter, Full
    try:
        with pytest.raises(GalvatronError, match=r'iter_0000004 was not saved: rank 2: .*No space left.*iteration 3 is whole'): saver.save(4)
    finally: checkpoint.PieceWriter = real

@functools.cache
def tokens(): return torch.randint(0, VOCAB, (BSZ, SEQ), generator=torch.Generator().manual_seed(0))

@functools.cache
def hugging_face(path):
    "Logits of the unmodified model"
    from transformers import AutoModelForCausalLM
    with torch.no_grad(): return AutoModelForCausalLM.from_pretrained(path, attn_implementation='eager')(tokens()).logits

def logits_of(model):
    "Loss, and the logits of all samples, put together from the pieces that the ranks of the last stage compute"
    seen, real, x = [], stage.vocab_cross_entropy, tokens()
    def watch(logits, *args, **kwargs):
        seen.append(logits.detach().clone())
        return real(logits, *args, **kwargs)
    stage.vocab_cross_entropy = watch
    try: loss = Pipeline(model).evaluate([dict(tokens=x[list(r)], labels=x.roll(-1, 1)[list(r)]) for r in model.rows()])
    finally: stage.vocab_cross_entropy = real
    context, every = model.units[-1].context, [None]*dist.get_world_size()
    dist.all_gather_object(every, [(list(r), token_slice(context, SEQ), context.tp_rank*l.shape[-1], l) for r,l in zip(model.rows(), seen)])
    whole = torch.full((BSZ, SEQ, VOCAB), torch.nan)
    for rows,cut,first,l in sum(every, []):
        n = min(VOCAB-first, l.shape[-1])                       # without the rows that pad the vocabulary
        whole[rows,cut,first:first+n] = l[...,:n]
    return loss, whole

def logits_case(folder, name, kind, plan, options):
    "A Hugging Face folder, read under a plan: every logit is Hugging Face's"
    from galvatron.checkpoint.huggingface import load_checkpoint
    path = Path(folder)/kind
    model = StageModel(ModelSpec.from_hf(path, seq=SEQ), plan, options, seed=9)
    saver = Checkpointer(Path(folder)/name, model)
    assert load_checkpoint(saver, path).iteration==0
    loss, logits = logits_of(model)
    want = hugging_face(path)
    assert want.std()>.1 and (logits-want).abs().max()<1e-5, (logits-want).abs().max()
    theirs = torch.nn.functional.cross_entropy(want.double().flatten(0, 1), tokens().roll(-1, 1).flatten())
    assert abs(loss-theirs)<1e-5, (loss, theirs)
    return model, saver

def round_trip_case(folder, name, kind, plan, options):
    "The same; saved and written out, the tensors are the folder's"
    from galvatron.checkpoint.huggingface import g2h, open_weights
    model, saver = logits_case(folder, name, kind, plan, options)
    saver.save(1)
    if model.place.rank==0:
        g2h(Path(folder)/name, Path(folder)/f'{name}-out')
        a, b = open_weights(Path(folder)/kind), open_weights(Path(folder)/f'{name}-out')
        assert {n:(t.shape, t.dtype) for n,t in a.items()}=={n:(t.shape, t.dtype) for n,t in b.items()}
        every = (slice(None),)
        assert all(torch.equal(a[n].read(every), b[n].read(every)) for n in a)

def mib(key): return int(next(l for l in open('/proc/self/status') if l.startswith(key)).split()[1])/1024

def memory_of_conversion(source, out):
    "MiB by which this process's memory grows at most while a folder is converted (file pages, which the system takes back at will, do not count), after another one has loaded whatever code that needs"
    from galvatron.checkpoint.huggingface import h2g
    h2g(Path(source)/'small', Path(out)/'small')
    before, peak, over = mib('RssAnon'), [0.], threading.Event()
    def watch():
        while not over.wait(.001): peak[0] = max(peak[0], mib('RssAnon'))
    watcher = threading.Thread(target=watch)
    watcher.start()
    h2g(Path(source)/'large', Path(out)/'large')
    over.set()
    watcher.join()
    return peak[0]-before
