#!/bin/sh
# Search the fastest plan that fits; writes configs/galvatron_config_*.json
# NUM_NODES, NUM_GPUS_PER_NODE and MEMORY_CONSTRAINT (GB) say for which cluster, MODEL_SIZE for which model.
# Words behind the script go to `galvatron search` and win over those here (--help lists them); paths start at the folder above this one.
cd "$(dirname "$0")/.." || exit

exec python3 -m galvatron search \
    --model_type llama_hf --model_size "${MODEL_SIZE:-llama-7b}" \
    --num_nodes "${NUM_NODES:-1}" --num_gpus_per_node "${NUM_GPUS_PER_NODE:-8}" --memory_constraint "${MEMORY_CONSTRAINT:-36}" \
    --min_bsz 64 --max_bsz 64 --bsz_scale 16 --search_space full --sp_space tp+sp --default_dp_type zero2 --pipeline_type pipedream_flush --mixed_precision bf16 --sequence_parallel "$@"
