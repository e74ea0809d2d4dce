"""The same steps by other trainers: one block of steps in a process of its own, its figures as the last line of output

    python tools/rivals.py torchtitan 'llama-1b 4x4096'       # its Trainer.train_step: compile of layers and loss, chunked loss where PyTorch is new enough, CUDA graphs, fused AdamW, FSDP2 on one rank
    python tools/rivals.py hf 'llama-1b 4x4096'               # transformers' Trainer with torch_compile, bf16, fused AdamW
    python tools/rivals.py ours 'llama-1b 4x4096'

All keep fp32 weights, gradients and moments and compute in bf16, clip to norm 1, and get the same random tokens. The options are those that are fastest for the other trainer:
torchtitan's language models attend with FlexAttention as shipped (`torchtitan-flex`); `torchtitan` gives it scaled-dot-product attention, cuDNN first. Under torchrun it shards over all ranks (FSDP2); `torchtitan-zero2`
keeps gathered weights for the backward, `-ddp` replicates, `-tp` shares layers by tensor parallelism with sequence parallelism, `-pp` makes a pipeline (1F1B, micro-batches of one sample); tokens/s are then those of one GPU.
"""
import inspect, json, os, re, subprocess, sys, tempfile, time
from functools import partialmethod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from steps import Case, MIB, Random, row_of, train

class Clock:
    "Marks on the device; ms between them"
    def __init__(self):
        import torch
        self.cuda, self.marks, self.host = torch.cuda.is_available(), [], []
        if self.cuda: torch.cuda.reset_peak_memory_stats()
        self.mark()
    def mark(self):
        import torch
        if self.cuda:
            e = torch.cuda.Event(enable_timing=True); e.record(); self.marks.append(e)
        else: self.marks.append(time.perf_counter())
        self.host.append(time.perf_counter())
    def result(self, loss):
        import torch
        if self.cuda: torch.cuda.synchronize()
        ms = [a.elapsed_time(b) if self.cuda else (b-a)*1e3 for a,b in zip(self.marks, self.marks[1:])]
        host = [(b-a)*1e3 for a,b in zip(self.host, self.host[1:])]
        used, reserved = (torch.cuda.max_memory_allocated()/MIB, torch.cuda.max_memory_reserved()/MIB) if self.cuda else (0., 0.)
        return dict(ms=ms, host_ms=host, loss=[float(loss)], norm=[0.], allocated_mib=used, reserved_mib=reserved, first_s=ms[0]/1e3)

# ---- torchtitan

def titan_spec(spec, attention):
    "torchtitan's description of a Llama of the same shape"
    from functools import partial
    from torch import nn
    from torchtitan.models import llama3
    from torchtitan.models.common.attention import ScaledDotProductAttention
    t = spec.layer_types[0]
    flavour = llama3.llama3_configs['1B' if spec.tied else '8B'](attn_backend='flex')
    layers = llama3._build_llama3_layers(n_layers=spec.n_layers, dim=t.hidden, n_heads=t.heads, n_kv_heads=t.kv_heads, hidden_dim=t.ffn, attn_backend='flex',
                                         rope=llama3.ComplexRoPE.Config(dim=t.head_dim, max_seq_len=131072, theta=500000, scaling='llama'))
    if attention=='sdpa':
        for l in layers: l.attention.inner_attention = ScaledDotProductAttention.Config()
    flavour.dim, flavour.vocab_size, flavour.layers = t.hidden, spec.vocab, layers
    flavour.tok_embeddings.num_embeddings, flavour.tok_embeddings.embedding_dim = spec.vocab, t.hidden
    flavour.norm.normalized_shape = t.hidden
    flavour.lm_head.in_features, flavour.lm_head.out_features = t.hidden, spec.vocab
    flavour.lm_head.param_init = {'weight': partial(nn.init.trunc_normal_, std=t.hidden**-.5)}
    registry = llama3.model_registry('debugmodel')
    registry.model, registry.flavor = flavour, 'same shape'
    return registry

def prepare_titan():
    "What torchtitan 0.3 imports from a newer PyTorch than 2.11 and does not use on one rank, and the environment of one rank"
    import torch, torch.distributed.fsdp as fsdp
    if not hasattr(fsdp, 'DataParallelMeshDims'): fsdp.DataParallelMeshDims = type('DataParallelMeshDims', (), {})
    if not torch.cuda.is_available(): # a rehearsal
        from types import SimpleNamespace as N
        torch._utils._get_available_device_type = lambda: 'cpu'
        import torchtitan.components.metrics as m
        m.DeviceMemoryMonitor = lambda *a: N(device_name='cpu', device_capacity_gib=0., reset_peak_stats=lambda: None, get_peak_stats=lambda: N(max_reserved_gib=0., max_reserved_pct=0.))
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle as Schedule
    if 'arg_mbs' not in inspect.signature(Schedule.step).parameters: Schedule.step = step_in_pieces
    if 'get_mesh' not in inspect.signature(PipelineStage).parameters: PipelineStage.__init__ = partialmethod(meshless, PipelineStage.__init__)
    if 'RANK' not in os.environ: os.environ.update(RANK='0', WORLD_SIZE='1', LOCAL_RANK='0', LOCAL_WORLD_SIZE='1', MASTER_ADDR='127.0.0.1', MASTER_PORT=os.environ.get('MASTER_PORT', '29531'))

def step_in_pieces(self, *, arg_mbs, kwarg_mbs, target_mbs, losses, loss_kwargs, return_outputs):
    "A step of PyTorch's pipeline schedule for micro-batches that are already apart, which a PyTorch newer than 2.13 takes itself"
    self._stage.clear_runtime_states()
    loss_fn = self._loss_fn
    self._loss_fn = lambda *a: (lambda out: out[0] if isinstance(out, tuple) else out)(loss_fn(*a, **loss_kwargs))
    more = dict(return_outputs=return_outputs) if 'return_outputs' in inspect.signature(self._step_microbatches).parameters else {}
    try: return self._step_microbatches(arg_mbs, kwarg_mbs, target_mbs, losses, **more)
    finally: self._loss_fn = loss_fn

def meshless(self, init, *args, get_mesh=None, **kwargs):
    "A stage of PyTorch 2.11, which is not told of meshes"
    init(self, *args, **kwargs)

def titan_plan(name, world):
    "torchtitan's words for a plan over all ranks"
    return {'': {}, 'zero2': dict(fsdp_reshard_after_forward='never'), 'ddp': dict(data_parallel_replicate_degree=world, data_parallel_shard_degree=1),
            'tp': dict(tensor_parallel_degree=world), 'pp': dict(pipeline_parallel_degree=world, pipeline_parallel_schedule='1F1B', pipeline_parallel_microbatch_size=1)}[name]

def titan_config(case, spec, attention, graphs, plan, local, folder):
    from dataclasses import dataclass
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.components.optimizer import default_adamw
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.config.configs import DebugConfig
    from torchtitan.trainer import Trainer
    class NoData(BaseDataLoader):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config): pass
        def __init__(self, config, **kw): pass
        def __iter__(self): return iter(())
        def state_dict(self): return {}
        def load_state_dict(self, d): pass
    class NoTokenizer(BaseTokenizer):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config): pass
        def __init__(self, config, **kw): super().__init__()
        def encode(self, *a, **k): return []
        def decode(self, *a, **k): return ''
        def get_vocab_size(self): return spec.vocab
    import torch
    loss = CrossEntropyLoss.Config(global_vocab_size=spec.vocab)
    if torch.__version__>="2.12": loss = ChunkedLossWrapper.Config(loss_fn=loss)            # with 2.11 its backward reads weights that FSDP2 has let go
    return Trainer.Config(model_spec=titan_spec(spec, attention), loss=loss,
        tokenizer=NoTokenizer.Config(), dataloader=NoData.Config(), optimizer=default_adamw(lr=1e-4), dump_folder=folder,
        parallelism=ParallelismConfig(**plan, spmd_backend='partial_dtensor'), # the others need a newer PyTorch than 2.11
        training=TrainingConfig(local_batch_size=local, global_batch_size=case.batch, seq_len=spec.seq, steps=1000, disable_cuda_graphs=not graphs),
        metrics=MetricsProcessor.Config(log_freq=10**6), activation_checkpoint=None, compile=CompileConfig(enable=case.compile), debug=DebugConfig(enable_structured_logging=False))

def titan(case, steps, attention='sdpa', graphs=True, plan=''):
    "Steps by torchtitan's Trainer"
    prepare_titan()
    rank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    shared = plan in ('tp', 'pp') # all ranks work on the same samples
    local = case.batch//case.chunks//(1 if shared else world)
    import torch
    from torchtitan.trainer import Trainer
    spec = case.spec
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        t = Trainer(titan_config(case, spec, attention, graphs and plan!='pp', titan_plan(plan, world), local, folder)) # a pipeline allows no CUDA graphs
        data, n = Random(spec.vocab, spec.seq), 1 if plan=='pp' else local
        first = 0 if shared else rank*n
        rows = [torch.utils.data.default_collate([data[(k*n*(1 if shared else world)+first+i)%len(data)] for i in range(n)]) for k in range(8)]
        rows = [{k: v.pin_memory() if torch.cuda.is_available() else v for k,v in r.items()} for r in rows]
        def batches():
            k = 0
            while True:
                r, k = rows[k%len(rows)], k+1
                inputs = dict(input=r['tokens'])
                if attention!='sdpa': inputs['positions'] = torch.arange(spec.seq).expand(n, -1)
                yield inputs, r['labels']
        it, build, losses = batches(), time.perf_counter()-begin, []
        inner = t.forward_backward_step
        t.forward_backward_step = lambda **a: (losses.append(inner(**a)), losses[-1])[1]
        clock = Clock()
        for t.step in range(2, steps+2): # step 1 would be logged
            t.train_step(it)
            clock.mark()
        out = clock.result(losses[-1].detach()*case.chunks) | dict(build_s=build)
        t.close()
    torch.distributed.destroy_process_group()
    return out

# ---- Hugging Face

def hf(case, steps):
    "Steps by transformers' Trainer"
    import torch
    from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments
    spec, cuda = case.spec, torch.cuda.is_available()
    config = spec.hf_config()
    config.use_cache = False
    class Data(Random):
        def __getitem__(self, i):
            t = torch.as_tensor(super().__getitem__(i%self.n)['tokens'])
            return dict(input_ids=t, labels=t)
    class Marks(TrainerCallback):
        clock = None
        def on_step_begin(self, *a, **k): self.clock = self.clock or Clock()
        def on_step_end(self, *a, **k): self.clock.mark()
    begin = time.perf_counter()
    with torch.device('cuda' if cuda else 'cpu'): model = AutoModelForCausalLM.from_config(config, attn_implementation='sdpa', dtype=torch.float32)
    marks = Marks()
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(folder, per_device_train_batch_size=case.batch//case.chunks, gradient_accumulation_steps=case.chunks, max_steps=steps, bf16=case.precision=='bf16', torch_compile=case.compile and cuda,
            optim='adamw_torch_fused' if cuda else 'adamw_torch', max_grad_norm=1., logging_strategy='no', save_strategy='no', report_to='none', logging_nan_inf_filter=False, use_cpu=not cuda,
            dataloader_pin_memory=cuda, dataloader_num_workers=0, disable_tqdm=True, tf32=True if cuda else None)
        t = Trainer(model, args, train_dataset=Data(spec.vocab, spec.seq, n=case.batch*steps), callbacks=[marks])
        build = time.perf_counter()-begin
        got = t.train()
    return marks.clock.result(got.training_loss) | dict(build_s=build)

def block(who, case, steps):
    if who=='ours': return row_of(case, train(case, steps))
    got = hf(case, steps) if who=='hf' else titan(case, steps, 'flex' if 'flex' in who else 'sdpa', 'nograph' not in who, next((p for p in ('zero2', 'ddp', 'tp', 'pp') if who.endswith(f'-{p}')), ''))
    row, n = row_of(case, got), int(os.environ.get('WORLD_SIZE', 1))
    return row | dict(tokens_s=row['tokens_s']/n, mfu=row['mfu']/n)

def stop(p):
    "Ask a process to end, so that it ends its own too; torchrun takes up to 30 s for that"
    p.terminate()
    try: p.communicate(timeout=40)
    except subprocess.TimeoutExpired: p.kill()

def run(who, case, steps, seconds, nproc=1):
    "A block in a process of its own, or one on each of several GPUs: its row, or why there is none"
    under = [sys.executable] + ['-m', 'torch.distributed.run', '--standalone', f'--nproc-per-node={nproc}']*(nproc>1)
    cmd = [*under, __file__, who, str(case), str(steps)] + ['--tiny']*case.tiny
    p = subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try: out, err = p.communicate(timeout=max(20, seconds))
    except subprocess.TimeoutExpired:
        stop(p)
        return dict(case=str(case), who=who, error=f'no result within {seconds:.0f} s')
    last = [l for l in out.splitlines() if l.startswith('{')][-1:]
    if p.returncode or not last: return dict(case=str(case), who=who, oom='OutOfMemory' in err, error=(re.split(r'\n[WE]\d{4} ', err)[0] or out)[-1500:]) # without what torchrun says of it
    return dict(who=who) | json.loads(last[0])

def main():
    args = [a for a in sys.argv[1:] if a!='--tiny']
    row = block(args[0], Case.parse(args[1], '--tiny' in sys.argv), int(args[2]) if len(args)>2 else 10)
    if os.environ.get('RANK', '0')=='0': print(json.dumps(row), flush=True)

if __name__=='__main__': main()
