#!/bin/sh
# Train on random tokens
# NUM_NODES, NUM_GPUS_PER_NODE, MASTER_ADDR, MASTER_PORT and NODE_RANK say where; run it on every node. MODEL_SIZE names the model.
# Without --galvatron_config_path configs/galvatron_config_NAME.json every layer gets the strategy of the flags (--pp_deg, --global_tp_deg, ...).
# Words behind the script go to `galvatron train` and win over those here (--help lists them); paths start at the folder above this one.
cd "$(dirname "$0")/.." || exit

exec python3 -m galvatron train \
    --model_type gpt_hf --model_size "${MODEL_SIZE:-gpt-1.5b}" \
    --mock_data \
    --global_train_batch_size 16 --train_iters 10 --lr 1e-4 --mixed_precision bf16 --sequence_parallel --use-flash-attn --check_loss 1 "$@"
