#!/bin/sh
# Train on random pictures
MODEL_TYPE=vit_hf MODEL_SIZE=${MODEL_SIZE:-vit-large}
SEQUENCE=""
. "$(dirname "$0")/../../common/train_dist_random.sh"
