#!/bin/sh
# Count the memory of the layers of the model on one device; writes configs/
# MODEL_SIZE names the model.
# Words behind the script go to `galvatron profile-model` and win over those here (--help lists them); paths start at the folder above this one.
cd "$(dirname "$0")/.." || exit

exec python3 -m galvatron profile-model \
    --model_type gpt_hf --model_size "${MODEL_SIZE:-gpt-1.5b}" \
    --profile_type memory --profile_mode static --profile_batch_size 8 --mixed_precision bf16 "$@"
