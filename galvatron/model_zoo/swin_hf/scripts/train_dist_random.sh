#!/bin/sh
# Train on random pictures
MODEL_TYPE=swin_hf MODEL_SIZE=${MODEL_SIZE:-swin-large}
SEQUENCE=""
. "$(dirname "$0")/../../common/train_dist_random.sh"
