# What scripts/train_dist_random.sh of every model runs. Words behind a script win over those here (galvatron train --help lists them); paths start at the folder of the model.
# NUM_NODES, NUM_GPUS_PER_NODE, MASTER_ADDR, MASTER_PORT and NODE_RANK say where; run it on every node. SEQUENCE holds what the family can do along the sequence.
# Without --galvatron_config_path configs/galvatron_config_NAME.json every layer gets the strategy of the flags (--pp_deg, --global_tp_deg, ...).
cd "$(dirname "$0")/.." || exit

exec python3 -m galvatron train --model_type "$MODEL_TYPE" --model_size "$MODEL_SIZE" --mock_data \
    --global_train_batch_size 16 --train_iters 10 --eval_iters 0 --lr 1e-4 --mixed_precision bf16 --use-flash-attn --check_loss 1 $SEQUENCE "$@"
