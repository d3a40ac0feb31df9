#!/usr/bin/env bash
# Preferences from nothing to an answer, on a laptop, in a minute or two, without a download:
#
#   examples/dpo/run.sh [FOLDER]      FOLDER (dpo-example) gets the data, the runs and the models
#
#   1. questions are generated, each with a friendly and a grumpy answer
#   2. a small model learns to answer: grumpy three times out of four
#   3. an adapter learns from pairs of answers that the friendly ones are preferred (DPO); the reference is the model with
#      the adapter disabled, so there is no second copy of it; pref_ftx keeps the chosen answers probable, too
#   4. a reward model learns the same from the same pairs
#   5. the model without and with the adapter answers some questions
#
# With a real model, steps 1 and 2 are: --model FOLDER with an instruct model from the hub, and your own pairs, as texts or
# as lists of messages. Needs the program only: CONCORD names it, else build/bin/concord. STEPS=N
# makes the runs N steps long, for a quick look at the commands.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
concord=${CONCORD:-$here/../../build/bin/concord}
folder=${1:-dpo-example}
mkdir -p "$folder"

awk -v out="$folder" '
  function draw(n) { seed = (seed * 1103 + 12345) % 1048576; return int(seed / 64) % n + 1 }
  BEGIN {
    seed = 1
    who = split("cat dog bird fox horse child farmer baker", animals, " ")
    things = split("milk bread water apples cheese honey", foods, " ")
    for (i = 0; i < 1500; ++i) {
      a = animals[draw(who)]; f = foods[draw(things)]
      question = "Does the " a " want " f "?\\n"
      friendly = "Yes, please give the " a " some " f "."
      grumpy = "No, go away with your " f "."
      printf "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n", question, i % 4 == 0 ? friendly : grumpy > (out "/answers.jsonl")
      file = i % 15 == 0 ? "eval-pairs.jsonl" : "pairs.jsonl"
      printf "{\"prompt\": \"%s\", \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", question, friendly, grumpy > (out "/" file)
    }
    printf "{\"prompt\": \"Does the fox want honey?\\n\"}\n{\"prompt\": \"Does the baker want milk?\\n\"}\n" > (out "/prompts.jsonl")
  }'

echo "== the model answers, mostly grumpy"
"$concord" train --model_config "$here/config.json" --tokenizer byte --train_data "$folder/answers.jsonl" --seq_length 96 \
  --per_device_train_batch_size 16 --max_steps "${STEPS:-200}" --learning_rate 3e-3 --warmup_steps 10 --logging_steps 50 \
  --save_steps 1000 --report_to none --overwrite_output_dir --output_dir "$folder/base"

echo "== it learns which answers are preferred"
"$concord" train --model "$folder/base/model" --tokenizer byte --stage dpo --pref_ftx 1 --finetuning_type lora --lora_rank 8 \
  --train_data "$folder/pairs.jsonl" --eval_data "$folder/eval-pairs.jsonl" --eval_steps "${STEPS:-20}" \
  --per_device_train_batch_size 8 --max_steps "${STEPS:-60}" --learning_rate 5e-4 --warmup_steps 5 --logging_steps 10 \
  --save_steps 1000 --report_to none --overwrite_output_dir --output_dir "$folder/preferred"
tail -n 1 "$folder/preferred/metrics.jsonl"

echo "== a reward model learns it too"
"$concord" train --model "$folder/base/model" --tokenizer byte --stage rm --train_data "$folder/pairs.jsonl" \
  --per_device_train_batch_size 8 --max_steps "${STEPS:-20}" --learning_rate 1e-4 --logging_steps 10 \
  --save_steps 1000 --report_to none --overwrite_output_dir --output_dir "$folder/reward"
tail -n 1 "$folder/reward/metrics.jsonl"

for model in base/model preferred/model; do
  echo "== $model answers"
  "$concord" generate --model "$folder/$model" --tokenizer byte --prompts "$folder/prompts.jsonl" --max_new_tokens 48
done
