#!/usr/bin/env bash
# LoRA from nothing to a merged model, on a laptop, in a minute or two, without a download:
#
#   examples/lora/run.sh [FOLDER]      FOLDER (lora-example) gets the data, the runs and the models
#
#   1. text is generated: sentences like "the cat sees the dog.", and the same told as "the dog, the cat sees."
#   2. a small model is trained on the first kind: the base model
#   3. an adapter is trained on the second kind; the weights of the base model are unchanged
#   4. the adapter is merged into the base model
#   5. base model, adapter and merged model continue a text; the outputs of the last two are equal
#
# With a real model, steps 1 and 2 are: --model FOLDER with a model from the hub, and your own data.
# Needs the program only: CONCORD names it, else build/bin/concord. STEPS=N makes the runs N steps long, for a quick look at
# the commands.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
concord=${CONCORD:-$here/../../build/bin/concord}
folder=${1:-lora-example}
mkdir -p "$folder"

# sentences SEED COUNT STYLE: made from a list of words, the same on every machine.
sentences() {
  awk -v seed="$1" -v count="$2" -v style="$3" '
    function draw(n) { seed = (seed * 1103 + 12345) % 1048576; return int(seed / 64) % n + 1 }
    BEGIN {
      who = split("cat dog bird fox horse child farmer baker", animals, " ")
      does = split("sees hears likes follows finds knows", verbs, " ")
      for (i = 0; i < count; ++i) {
        a = animals[draw(who)]; v = verbs[draw(does)]; b = animals[draw(who)]
        if (style == "plain") print "the " a " " v " the " b ".\n"
        else print "the " b ", the " a " " v ".\n"
      }
    }'
}
sentences 1 4000 plain >"$folder/base.txt"
sentences 2 2000 turned >"$folder/turned.txt"
sentences 3 100 turned >"$folder/turned-eval.txt"

echo "== the base model"
"$concord" train --model_config "$here/config.json" --tokenizer byte --train_data "$folder/base.txt" --seq_length 64 \
  --per_device_train_batch_size 16 --max_steps "${STEPS:-200}" --learning_rate 3e-3 --warmup_steps 10 --logging_steps 50 \
  --save_steps 1000 --report_to none --overwrite_output_dir --output_dir "$folder/base"

echo "== the adapter"
"$concord" train --model "$folder/base/model" --finetuning_type lora --lora_rank 8 --lora_alpha 16 --lora_target all-linear \
  --tokenizer byte \
  --train_data "$folder/turned.txt" --eval_data "$folder/turned-eval.txt" --eval_steps "${STEPS:-50}" --seq_length 64 \
  --per_device_train_batch_size 16 --max_steps "${STEPS:-150}" --learning_rate 5e-3 --warmup_steps 10 --logging_steps 25 \
  --save_steps 1000 --report_to none --overwrite_output_dir --output_dir "$folder/adapter"
ls -l "$folder/adapter/model"

echo "== merged"
rm -rf "$folder/merged"
"$concord" merge --model "$folder/base/model" --adapter "$folder/adapter/model" --out "$folder/merged"

for model in base/model adapter/model merged; do
  echo "== $model continues \"the fox\""
  "$concord" generate --model "$folder/$model" --tokenizer byte --prompt "the fox" --max_new_tokens 40
done
