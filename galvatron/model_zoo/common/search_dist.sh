# What scripts/search_dist.sh of every model runs. Words behind a script win over those here (galvatron search --help lists them); paths start at the folder of the model.
# NUM_NODES, NUM_GPUS_PER_NODE and MEMORY_CONSTRAINT (GB) say for which cluster. SEQUENCE holds what the family can do along the sequence.
cd "$(dirname "$0")/.." || exit

exec python3 -m galvatron search --model_type "$MODEL_TYPE" --model_size "$MODEL_SIZE" \
    --num_nodes "${NUM_NODES:-1}" --num_gpus_per_node "${NUM_GPUS_PER_NODE:-8}" --memory_constraint "${MEMORY_CONSTRAINT:-36}" \
    --min_bsz 64 --max_bsz 64 --bsz_scale 16 --search_space full --default_dp_type zero2 --pipeline_type pipedream_flush --mixed_precision bf16 $SEQUENCE "$@"
