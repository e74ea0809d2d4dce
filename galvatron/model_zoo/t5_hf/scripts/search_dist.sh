#!/bin/sh
# Search the fastest plan that fits; writes configs/galvatron_config_*.json
MODEL_TYPE=t5_hf MODEL_SIZE=${MODEL_SIZE:-t5-large}
SEQUENCE="--sequence_parallel"
. "$(dirname "$0")/../../common/search_dist.sh"
