#!/bin/sh
# Count the memory of the layers of the model on one device; writes configs/
MODEL_TYPE=t5_hf MODEL_SIZE=${MODEL_SIZE:-t5-large}
. "$(dirname "$0")/../../common/profile_memory.sh"
