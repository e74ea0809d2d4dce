#!/bin/sh
# Time the collectives of this cluster; writes hardware_configs/
# NUM_NODES, NUM_GPUS_PER_NODE (default: the visible GPUs), MASTER_ADDR, MASTER_PORT and NODE_RANK say where; run it on every node.
# Words behind the script go to `galvatron profile-hardware` and win over those here (--help lists them); paths start at the folder above this one.
cd "$(dirname "$0")/.." || exit

exec python3 -m galvatron profile-hardware \
    --num_nodes "${NUM_NODES:-1}" --num_gpus_per_node "${NUM_GPUS_PER_NODE:-0}" \
    --start_mb 16 --end_mb 512 --scale 2 --avg_or_min_or_first first --max_pp_deg 8 --overlap_time_multiply 4 "$@"
