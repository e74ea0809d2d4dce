#!/usr/bin/env bash
# Galvatron to Hugging Face: make a folder that from_pretrained loads of the latest checkpoint; --iteration N takes another.
# Set the two folders here, or in the environment.
INPUT_PATH=${INPUT_PATH:?folder that --save named}
OUTPUT_PATH=${OUTPUT_PATH:?Hugging Face folder to make}

exec ${PYTHON:-python} -m galvatron convert g2h --model_type swin --input_path "$INPUT_PATH" --output_path "$OUTPUT_PATH" "$@"
