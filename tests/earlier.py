"Folders as earlier Galvatron versions wrote them: a file a layer by their h2g, a folder a layer by their distributed save of Llama"
import json
from pathlib import Path

import torch, torch.nn.functional as F

STEMS = {'model.layers.': 3, 'model.embed_tokens.': 2, 'model.norm.': 2, 'transformer.h.': 3, 'transformer.ln_f.': 2, 'bert.encoder.layer.': 4, 'bert.embeddings.': 2, 'bert.pooler.': 2, 'cls.predictions.': 2, 'lm_head.': 1}

def layer_files(state, folder):
    "What their h2g made of a Hugging Face state dict"
    files, gpt = {}, any(n.startswith('transformer.') for n in state)
    for name,t in state.items():
        start = next((s for s in STEMS if name.startswith(s)), None)
        parts = name.split('.')
        if gpt and (start is None or start=='lm_head.'): stem, key = 'transformer_embedding', '.'.join(parts[1:]) # lm_head.weight became `weight`
        elif start is None: continue                                    # BERT's second head was dropped
        else:
            stem, key = '_'.join(parts[:STEMS[start]]), '.'.join(parts[STEMS[start]:])
            if start=='model.embed_tokens.': key = 'embed_tokens.'+key
        files.setdefault(stem, {})[key] = t.clone()
    folder.mkdir(parents=True)
    for stem,tensors in files.items(): torch.save(tensors, folder/f'{stem}.pt')

def cut(t, n, dim=0): return [p.clone() for p in t.detach().chunk(n, dim)]

def rank_files(hf, root, iteration, widths, vtp=1, ranks=1, bsz=16, use_sp=None, **schedule):
    "What their save wrote for a Llama: layer i on widths[i] tensor-parallel ranks, vocabulary padded and divided by vtp"
    folder, c = Path(root)/f'iter_{iteration}', hf.config
    def write(name, parts):
        (folder/name).mkdir(parents=True)
        for t,tensors in enumerate(parts): torch.save(tensors, folder/name/f'{t}.pt')
    def rows(t, key): return [{key: p} for p in cut(F.pad(t.detach(), (0, 0, 0, -len(t)%(128*vtp))), vtp)]
    write('model_embed_tokens', rows(hf.model.embed_tokens.weight, 'embed_tokens.weight'))
    write('lm_head', rows(hf.lm_head.weight, 'lm_head.weight'))
    write('model_norm', [{'norm.weight': hf.model.norm.weight.detach().clone()}]*vtp)
    for i,(l,k) in enumerate(zip(hf.model.layers, widths)):
        a, m, kv = l.self_attn, l.mlp, c.num_key_value_heads
        qkv = torch.cat([p.weight.detach().view(kv, -1, a.head_dim, c.hidden_size) for p in (a.q_proj, a.k_proj, a.v_proj)], 1).flatten(0, 2)
        gate_up = [torch.cat(p) for p in zip(cut(m.gate_proj.weight, k), cut(m.up_proj.weight, k))]
        columns = zip(cut(qkv, k), cut(a.o_proj.weight, k, 1), gate_up, cut(m.down_proj.weight, k, 1), strict=True)
        names = 'attention.attention.query_key_value', 'attention.attention.dense', 'mlp.mlp.dense_h_to_4h', 'mlp.mlp.dense_4h_to_h'
        norms = {'attention.LayerNorm.weight': l.input_layernorm.weight.detach().clone(), 'mlp.LayerNorm.weight': l.post_attention_layernorm.weight.detach().clone()}
        write(f'model_layers_{i}', [{f'{n}.weight': t for n,t in zip(names, ts)} | norms for ts in columns])
    write('optimizer', [dict(state={}, param_groups=[])]*ranks)
    n = len(widths)
    (folder/'opt_param_scheduler.json').write_text(json.dumps(dict(dict(max_lr=1e-4, lr_warmup_steps=0, num_steps=iteration*bsz, lr_decay_style='constant', lr_decay_steps=1000*bsz, min_lr=0., start_wd=.01, end_wd=.01,
                                                                       wd_incr_style='constant', wd_incr_steps=1000*bsz), **schedule)))
    (Path(root)/'hybrid_parallel_configs.json').write_text(json.dumps(dict(pp_deg=1, tp_sizes_enc=list(widths), tp_consecutive_flags=[1]*n, dp_types_enc=[1]*n, checkpoint_flags_enc=[0]*n, pp_ranks_enc=[0]*n, pp_division=[n],
        use_sp=use_sp or [0]*n, vocab_tp=vtp, vocab_sp=0, default_dp_type='zero2', global_train_batch_size=bsz)))
