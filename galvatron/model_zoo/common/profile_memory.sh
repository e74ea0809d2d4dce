# What scripts/profile_memory.sh of every model runs. Words behind a script win over those here (galvatron profile-model --help lists them); paths start at the folder of the model.
cd "$(dirname "$0")/.." || exit

exec python3 -m galvatron profile-model --model_type "$MODEL_TYPE" --model_size "$MODEL_SIZE" \
    --profile_type memory --profile_mode static --profile_batch_size 8 --mixed_precision bf16 "$@"
