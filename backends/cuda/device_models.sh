#!/usr/bin/env bash
# Runs operators, layers, models and training on a machine with a CUDA device: the tests of every platform, with up to
# four ranks that share the device; every kernel at the sizes of real models (sizes); the first run of the README; models
# of real shapes; training, generation, LoRA, DPO and images compared with transformers; memory; full training of large
# models; and the loss in FP8 and with narrow state. Needs what device_check.sh needs, GTest, fmt, nlohmann_json, CLI11,
# yaml-cpp, and torch with CUDA; transformers for the steps random, speed, generate, adapters and images.
#
#   backends/cuda/device_models.sh [STEP...]
#
# Runs the given steps, or all of them ($known below), and builds only the targets that they need. Reports go to $OUT
# (default: build-device/report). Prints one line per step; the exit code is 0 if all of them passed.
set -u -o pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
known="ops sizes state parallel hf train replay resume deterministic checkpoint recovery random first probe step checks speed"
known+=" generate adapters sequences fp8 images large losses"
wanted=${*:-$known}
for name in $wanted; do
  [[ " $known " == *" $name "* ]] || { echo "unknown step $name; choose from: $known" >&2; exit 2; }
done
. "$root/backends/cuda/device_steps.sh"
write_environment
find_torch

options=(-DPLATFORM=cuda -DCONCORD_TESTS=ON -DCONCORD_PROGRAM=ON -DCONCORD_WITH_TORCH=ON -DCONCORD_BENCHMARKS=ON)
command -v ninja >/dev/null && options+=(-G Ninja)
step configure 120 cmake -S "$root" -B "$build" "${options[@]}"

# What a step is built of.
targets() {
  case $1 in
    ops | sizes) echo ops_test ;;
    state) echo optim_test ;;
    parallel) echo parallel_test vocab_cross_entropy_test ;;
    hf) echo hf_parity_test ;;
    train) echo train_program_parity_test concord ;;
    step) echo device_step concord ;;
    checkpoint) echo checkpoint_bench concord ;;
    *) echo concord ;;
  esac
}
read -ra parts < <(for name in $wanted; do targets "$name"; done | tr '\n' ' ')
step build 480 cmake --build "$build" --parallel "$(nproc)" --target concord_plugin_cuda concord_plugin_cpu \
  "${parts[@]}"

export CONCORD_PLATFORM=cuda CONCORD_CUDA_SHARED_DEVICE=1 CONCORD_PLUGIN_PATH=$build/lib CONCORD_LOG=warn
wants() { [[ " $wanted " == *" $1 "* ]]; }

# first_run NAME NPROC: the README's first command, on the device; its metrics are kept.
first_run() {
  rm -rf "$build/first-$1"
  "$build/bin/concord" train --nproc "$2" --output_dir "$build/first-$1" || return 1
  cp "$build/first-$1/metrics.jsonl" "$out/first-$1.jsonl"
}
export -f first_run
export build out

if wants ops; then step ops 150 "$build/tests/ops_test"; fi
# The second run is that of attention with cuDNN left out. How much of its bound each sample uses is in the .json files.
if wants sizes; then
  real='*AtRealSizes'
  step sizes 200 env CONCORD_TEST_REAL_SIZES=1 "$build/tests/ops_test" --gtest_filter="$real/*" \
    --gtest_output="json:$out/sizes.json"
  step sizes-flash 100 env CONCORD_TEST_REAL_SIZES=1 CONCORD_CUDA_ATTENTION=flash "$build/tests/ops_test" \
    --gtest_filter="$real/BFloat16:$real/Half" --gtest_output="json:$out/sizes-flash.json"
fi
if wants state; then step state 100 "$build/tests/optim_test"; fi
if wants parallel; then
  step parallel 150 "$build/tests/parallel_test"
  step vocab 60 "$build/tests/vocab_cross_entropy_test"
fi
if wants hf; then
  export GTEST_TOTAL_SHARDS=2
  for shard in 0 1; do step "hf-$shard" 400 env GTEST_SHARD_INDEX=$shard OMP_NUM_THREADS=1 "$build/tests/hf_parity_test"; done
  unset GTEST_TOTAL_SHARDS
fi
if wants train; then
  step train 150 "$build/tests/train_program_parity_test" \
    --gtest_filter='*FullBatches/One:*FullBatches/Dp2:*Uneven*/Tp2Dp2:*Uneven*/Pp2ZeroBubble'
fi
if wants replay; then step replay 150 python3 "$root/tests/parity/devices/replayed_steps.py" "$build/bin/concord"; fi
if wants resume; then
  step resume 150 python3 "$root/tests/parity/devices/resume_across.py" "$build/bin/concord" cuda --json "$out/resume.json"
fi
if wants deterministic; then
  step deterministic 300 python3 "$root/tests/parity/devices/deterministic.py" "$build/bin/concord" cuda --size device \
    --json "$out/deterministic.json"
fi
# Beside torch.distributed.checkpoint, on the disk and in memory; then what saving does to the steps of a run.
if wants checkpoint; then
  export CONCORD_PYTHON=${CONCORD_PYTHON:-python3}
  step checkpoint-0.5b 150 "$build/bench/checkpoint_bench" device 0.5b "$build/checkpoint-bench"
  rm -rf "$build/checkpoint-bench"
  step checkpoint-memory 100 "$build/bench/checkpoint_bench" device 0.5b /dev/shm/concord-checkpoint-bench
  rm -rf /dev/shm/concord-checkpoint-bench
  step checkpoint-1.5b 300 "$build/bench/checkpoint_bench" device 1.5b "$build/checkpoint-bench"
  rm -rf "$build/checkpoint-bench"
  step checkpoint-steps 200 python3 -u "$root/tests/performance/device/save.py" "$build/bin/concord"
fi
# Lost and hanging ranks, four ranks on one device: reports the seconds until training continues.
if wants recovery; then
  step recovery 200 "$build/bin/concord" chaos --seed 2 --faults 4 --kinds kill,stop -- train --nproc 4 --max_steps 400 \
    --save_steps 100 --output_dir "$build/recovery"
fi
if wants random; then step random 100 python3 "$root/tests/parity/random_models.py" "$build/bin/concord" --count 4; fi
if wants first; then
  step first-1 100 bash -c 'first_run cuda-1 1'
  step first-2 100 bash -c 'first_run cuda-2 2'
fi
if wants probe; then
  step probe 100 python3 "$root/tests/performance/device/train.py" "$build/bin/concord" --probe
fi
if wants step; then
  step adamw 60 "$build/tests/device_step" adamw 494
  step experts 60 "$build/tests/device_step" experts
  step overlap 100 "$build/bin/concord" launch --nproc 2 -- "$build/tests/device_step" overlap "$out/overlap.json"
fi
if wants checks; then
  step checks 240 python3 -u "$root/tests/performance/device/checks.py" "$build/bin/concord" --json "$out/checks.json"
fi
if wants speed; then
  step speed 240 python3 -u "$root/tests/performance/device/train.py" "$build/bin/concord" --json "$out/speed.json"
fi
if wants generate; then
  step generate 120 python3 -u "$root/tests/performance/device/generate.py" "$build/bin/concord" \
    --json "$out/generate.json"
fi
if wants adapters; then
  step adapters 240 python3 -u "$root/tests/performance/device/adapters.py" "$build/bin/concord" --folder /dev/shm \
    --json "$out/adapters.json"
fi
if wants sequences; then
  step sequences 120 python3 -u "$root/tests/performance/device/sequences.py" "$build/bin/concord" \
    --json "$out/sequences.json"
fi
if wants fp8; then
  step fp8-losses 580 python3 -u "$root/tests/performance/device/fp8_losses.py" "$build/bin/concord" \
    --json "$out/fp8_losses.json"
fi
if wants images; then step images 200 python3 "$root/tests/parity/images.py" "$build/bin/concord"; fi
# Full training with 8 bytes of state per parameter, 16k tokens per step.
if wants large; then
  export CONCORD=$build/bin/concord
  large="$root/tests/performance/device/large.sh"
  step 7b-8bit-1 100 "$large" qwen2.5-7b 1 8bit
  step 7b-8bit-4 100 "$large" qwen2.5-7b 4 8bit
  step 7b-bf16-2 100 "$large" qwen2.5-7b 2 bf16
  step 7b-fp8-2 100 "$large" qwen2.5-7b 2 8bit --fp8 hybrid
  step 14b-8bit-1 120 "$large" qwen2.5-14b 1 8bit --recompute_granularity selective \
    --recompute_modules layernorm,mlp_act
fi
if wants losses; then
  step losses 400 python3 -u "$root/tests/performance/device/state_losses.py" "$build/bin/concord" --parallel 8 \
    --json "$out/state_losses.json"
fi
finish
