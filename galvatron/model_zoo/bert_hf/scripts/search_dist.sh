#!/bin/sh
# Search the fastest plan that fits; writes configs/galvatron_config_*.json
MODEL_TYPE=bert_hf MODEL_SIZE=${MODEL_SIZE:-bert-large}
SEQUENCE="--sequence_parallel"
. "$(dirname "$0")/../../common/search_dist.sh"
