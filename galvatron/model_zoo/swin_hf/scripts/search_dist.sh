#!/bin/sh
# Search the fastest plan that fits; writes configs/galvatron_config_*.json
MODEL_TYPE=swin_hf MODEL_SIZE=${MODEL_SIZE:-swin-large}
SEQUENCE=""
. "$(dirname "$0")/../../common/search_dist.sh"
