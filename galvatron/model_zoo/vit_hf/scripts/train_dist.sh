#!/bin/sh
# Train on pictures
# DATA_PATH: a folder with one folder of pictures for each class, or an .npz file
MODEL_TYPE=vit_hf MODEL_SIZE=${MODEL_SIZE:-vit-large}
DATA="folder of pictures, or .npz file"
SEQUENCE=""
. "$(dirname "$0")/../../common/train_dist.sh"
