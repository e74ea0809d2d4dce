#!/bin/sh
# Search the fastest plan that fits; writes configs/galvatron_config_*.json
MODEL_TYPE=gpt_fa MODEL_SIZE=${MODEL_SIZE:-gpt-1.5b}
SEQUENCE="--sequence_parallel --sp_space tp+sp"
. "$(dirname "$0")/../../common/search_dist.sh"
