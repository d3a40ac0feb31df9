#!/bin/sh
# Fine-tuning in a minute: a small new model learns to answer questions about capitals, then answers some.
#
#   examples/sft/run.sh [FOLDER]      FOLDER (sft-example) gets the data, the run and the model
#
# Needs the program only (CONCORD names it, else build/bin/concord): the data is made here, and a token is a byte, so
# neither a download nor Python is involved. With your own model: --model FOLDER instead of --model_config, without
# --tokenizer byte, and conversations ({"messages": [...]}) instead of prompts and completions.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
program=${CONCORD:-$here/../../build/bin/concord}
out=${1:-sft-example}
mkdir -p "$out"

# Two ways to ask for each; the second way of every fourth capital is kept for the evaluation.
awk -v out="$out" '
  function write(file, question, answer) {
    printf "{\"prompt\": \"%s\\n\", \"completion\": \"%s\"}\n", question, answer > (out "/" file)
  }
  {
    write("train.jsonl", "What is the capital of " $1 "?", $2)
    write(NR % 4 == 0 ? "eval.jsonl" : "train.jsonl", "Name the capital of " $1 ".", $2)
    if (NR % 8 == 0) printf "{\"prompt\": \"Name the capital of %s.\\n\"}\n", $1 > (out "/prompts.jsonl")
  }' <<'END'
Austria Vienna
Belgium Brussels
Chile Santiago
China Beijing
Cuba Havana
Denmark Copenhagen
Egypt Cairo
Finland Helsinki
France Paris
Germany Berlin
Greece Athens
Hungary Budapest
India Delhi
Iran Tehran
Italy Rome
Japan Tokyo
Kenya Nairobi
Nepal Kathmandu
Norway Oslo
Peru Lima
Poland Warsaw
Portugal Lisbon
Spain Madrid
Sweden Stockholm
END

"$program" train --config "$here/sft.yaml" --nproc 2 --model_config "$here/config.json" --train_data "$out/train.jsonl" \
  --eval_data "$out/eval.jsonl" --sample_prompts "$out/prompts.jsonl" --output_dir "$out/run" --overwrite_output_dir

echo
echo "What the model answers to questions of a form that it has not seen for these countries:"
"$program" generate --model "$out/run/model" --tokenizer byte --prompts "$out/prompts.jsonl" --max_new_tokens 20
