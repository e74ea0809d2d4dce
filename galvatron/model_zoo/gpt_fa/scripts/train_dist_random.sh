#!/bin/sh
# Train on random tokens
MODEL_TYPE=gpt_fa MODEL_SIZE=${MODEL_SIZE:-gpt-1.5b}
SEQUENCE="--sequence_parallel"
. "$(dirname "$0")/../../common/train_dist_random.sh"
