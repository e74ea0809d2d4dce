# What scripts/profile_computation.sh of every model runs. Words behind a script win over those here (galvatron profile-model --help lists them); paths start at the folder of the model.
cd "$(dirname "$0")/.." || exit

exec python3 -m galvatron profile-model --model_type "$MODEL_TYPE" --model_size "$MODEL_SIZE" \
    --profile_type computation --profile_mode batch --profile_min_batch_size 1 --profile_max_batch_size 8 --mixed_precision bf16 "$@"
