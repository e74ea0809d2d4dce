#!/usr/bin/env bash
# Hugging Face to Galvatron: make a checkpoint, for --load under any plan, of a folder of weights.
# Set the two folders here, or in the environment.
INPUT_PATH=${INPUT_PATH:?Hugging Face folder: config.json with *.safetensors or *.bin}
OUTPUT_PATH=${OUTPUT_PATH:?folder for the checkpoint}

exec ${PYTHON:-python} -m galvatron convert h2g --model_type bert --input_path "$INPUT_PATH" --output_path "$OUTPUT_PATH" "$@"
