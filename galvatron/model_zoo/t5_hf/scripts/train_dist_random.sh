#!/bin/sh
# Train on random tokens
MODEL_TYPE=t5_hf MODEL_SIZE=${MODEL_SIZE:-t5-large}
SEQUENCE="--sequence_parallel"
. "$(dirname "$0")/../../common/train_dist_random.sh"
