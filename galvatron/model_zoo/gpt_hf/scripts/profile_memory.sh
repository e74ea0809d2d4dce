#!/bin/sh
# Count the memory of the layers of the model on one device; writes configs/
MODEL_TYPE=gpt_hf MODEL_SIZE=${MODEL_SIZE:-gpt-1.5b}
. "$(dirname "$0")/../../common/profile_memory.sh"
