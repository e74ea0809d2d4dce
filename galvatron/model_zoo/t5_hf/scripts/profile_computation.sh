#!/bin/sh
# Time the layers of the model on one device, for batches of 1 to 8 samples; writes configs/
MODEL_TYPE=t5_hf MODEL_SIZE=${MODEL_SIZE:-t5-large}
. "$(dirname "$0")/../../common/profile_computation.sh"
