#!/bin/sh
# Train on token files of sentences (galvatron preprocess-data --split-sentences --vocab-extra-ids 100 makes them)
# DATA_PATH: their path without .bin and .idx
MODEL_TYPE=t5_hf MODEL_SIZE=${MODEL_SIZE:-t5-large}
DATA="path of a token file of sentences without .bin"
SEQUENCE="--sequence_parallel"
. "$(dirname "$0")/../../common/train_dist.sh"
