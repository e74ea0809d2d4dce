#!/bin/sh
# Train on random tokens
MODEL_TYPE=llama_fa MODEL_SIZE=${MODEL_SIZE:-llama-7b}
SEQUENCE="--sequence_parallel"
. "$(dirname "$0")/../../common/train_dist_random.sh"
