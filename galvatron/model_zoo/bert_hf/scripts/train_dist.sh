#!/bin/sh
# Train on token files (galvatron preprocess-data makes them)
# DATA_PATH: their path without .bin and .idx
MODEL_TYPE=bert_hf MODEL_SIZE=${MODEL_SIZE:-bert-large}
DATA="path of a token file without .bin"
SEQUENCE="--sequence_parallel"
. "$(dirname "$0")/../../common/train_dist.sh"
