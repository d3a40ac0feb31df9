#!/usr/bin/env bash
# Full training of a large model with 8 bytes of state per parameter: tokens per second and memory in use.
#
#   CONCORD=PROGRAM large.sh SHAPE BATCH MOMENTS [ARGUMENTS of concord train...]
#
# SHAPE and BATCH as in train.py; MOMENTS is a value of --exp_avg_dtype. A step has 4 rows of 4096 tokens.
set -eu
shape=$1 batch=$2 moments=$3
shift 3
exec python3 -u "$(dirname "$0")/train.py" "$CONCORD" --without compile,eager --length 4096 --shape "$shape" --batch "$batch" --steps 8 --warmup 3 -- \
  --gradient_accumulation_steps $((4 / batch)) --adam_beta2 0.95 --main_params_dtype remainder --main_grads_dtype bf16 \
  --exp_avg_dtype "$moments" --exp_avg_sq_dtype "$moments" "$@"
