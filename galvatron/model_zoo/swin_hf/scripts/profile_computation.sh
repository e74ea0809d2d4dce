#!/bin/sh
# Time the layers of the model on one device, for batches of 1 to 8 samples; writes configs/
MODEL_TYPE=swin_hf MODEL_SIZE=${MODEL_SIZE:-swin-large}
. "$(dirname "$0")/../../common/profile_computation.sh"
