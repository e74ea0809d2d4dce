#!/bin/sh
# Train on random tokens
MODEL_TYPE=bert_hf MODEL_SIZE=${MODEL_SIZE:-bert-large}
SEQUENCE="--sequence_parallel"
. "$(dirname "$0")/../../common/train_dist_random.sh"
