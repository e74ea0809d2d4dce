#!/bin/sh
# Time the layers of the model on one device, for batches of 1 to 8 samples; writes configs/
MODEL_TYPE=bert_hf MODEL_SIZE=${MODEL_SIZE:-bert-large}
. "$(dirname "$0")/../../common/profile_computation.sh"
