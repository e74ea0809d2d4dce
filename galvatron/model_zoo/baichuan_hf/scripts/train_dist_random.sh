#!/bin/sh
# Train on random tokens
MODEL_TYPE=baichuan_hf MODEL_SIZE=${MODEL_SIZE:-baichuan-7b}
SEQUENCE="--sequence_parallel"
. "$(dirname "$0")/../../common/train_dist_random.sh"
