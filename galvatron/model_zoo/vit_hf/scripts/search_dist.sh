#!/bin/sh
# Search the fastest plan that fits; writes configs/galvatron_config_*.json
MODEL_TYPE=vit_hf MODEL_SIZE=${MODEL_SIZE:-vit-large}
SEQUENCE=""
. "$(dirname "$0")/../../common/search_dist.sh"
