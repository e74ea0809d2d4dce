#!/bin/sh
# Count the memory of the layers of the model on one device; writes configs/
MODEL_TYPE=baichuan_fa MODEL_SIZE=${MODEL_SIZE:-baichuan-7b}
. "$(dirname "$0")/../../common/profile_memory.sh"
