#!/bin/sh
# Count the memory of the layers of the model on one device; writes configs/
MODEL_TYPE=vit_hf MODEL_SIZE=${MODEL_SIZE:-vit-large}
. "$(dirname "$0")/../../common/profile_memory.sh"
