#!/usr/bin/env bash
# Builds the cuda backend on a machine with a device and runs the tests that need one: the device test, the conformance
# kit with 1 to 4 ranks on one device and the benchmark of the plugin compared with raw calls; if their requirements are
# installed, also the unit tests, a small network in libtorch and the mutants. Needs nvcc, CMake, a C++20 compiler and
# NCCL (a torch wheel has it); no network.
#
#   backends/cuda/device_check.sh [--quick] [--world N] [--filter RE] [--limit S] [STEP...]
#
# The steps are device, conform, bench, unit, network and mutants; all of them unless some are named. --quick runs the
# quick part of the conformance kit, --filter these of its tests and of the mutants, --limit ends a step after S seconds
# (default: 900). Reports go to $OUT (default: build-device/report). Ends with one line per step and exit code 0 where all
# of them passed. On an H200 with 16 cores the build took 90 s, the device test 51 s, the kit without 3 ranks 305 s.
set -u -o pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
known=(device conform bench unit network mutants)
kit=()
filter=()
world=4
limit=900
steps=()
while [ $# -gt 0 ]; do
  case $1 in
    --quick) kit=(--quick) ;;
    --world) world=$2; shift ;;
    --filter) filter=(--filter "$2"); shift ;;
    --limit) limit=$2; shift ;;
    device | conform | bench | unit | network | mutants) steps+=("$1") ;;
    *) echo "unknown argument $1; see the head of $0" >&2; exit 2 ;;
  esac
  shift
done
[ ${#steps[@]} -gt 0 ] || steps=("${known[@]}")
. "$root/backends/cuda/device_steps.sh"
write_environment
find_torch

# Parts whose requirements are missing are left out of the build, and listed.
tests=ON program=ON missing=
for package in GTest nlohmann_json; do has_package $package || { tests=OFF program=OFF missing+=" $package"; }; done
for package in fmt yaml-cpp; do has_package $package || { program=OFF missing+=" $package"; }; done
has_header CLI/CLI.hpp || { program=OFF missing+=" CLI11"; }
[ -n "$CONCORD_TORCH" ] || { program=OFF missing+=" torch"; }
[ -z "$missing" ] || echo "not on this machine:$missing"
options=(-DPLATFORM=cuda -DCONCORD_TESTS="$tests" -DCONCORD_PROGRAM="$program" -DCONCORD_WITH_TORCH="$program"
  -DCONCORD_BENCHMARKS=OFF)
command -v ninja >/dev/null && options+=(-G Ninja)

# What a step is built of.
targets() {
  case $1 in
    device) echo concord-cuda-device-test ;;
    conform) echo concord-conform concord_plugin_cuda ;;
    bench) echo concord-cuda-bench ;;
    unit) echo cuda_{staging,nccl,no_device,plugin,comm,communicator}_test cuda_fake_bench ;;
    network) echo network_parity_test concord_plugin_cuda ;;
    mutants) echo mutants_harness concord_plugin_mutant concord_plugin_cuda ;;
  esac
}

plugin=$build/lib/libconcord_cuda.so
export CONCORD_PLUGIN_PATH=$build/lib
shared=(env CONCORD_CUDA_SHARED_DEVICE=1)  # several ranks on one device
run_step() {
  case $1 in
    device) step device "$limit" "$build/bin/concord-cuda-device-test" --plugin "$plugin" --json "$out/device.json" ;;
    conform) step conform "$limit" "${shared[@]}" "$build/bin/concord-conform" --platform cuda --world "$world" \
      "${kit[@]}" "${filter[@]}" --overwrite --report "$out/conformance.json" ;;
    bench) step bench "$limit" "$build/bin/concord-cuda-bench" --plugin "$plugin" ;;
    unit) step unit "$limit" ctest --test-dir "$build" -R '^cuda' -L unit -j 8 --output-on-failure ;;
    network) step network "$limit" env CONCORD_PLATFORM=cuda "$build/tests/network_parity_test" ;;
    # Far slower than on the cpu, where a mutant's test gets 6 s before it counts as hanging.
    mutants) step mutants "$limit" "${shared[@]}" "$build/tests/mutants_harness" --conform "$build/bin/concord-conform" \
      --mutant "$build/tests/libconcord_mutant.so" --base "$plugin" --deadline 40 --jobs 5 "${filter[@]}" ;;
  esac
}

# Whether the build has the parts that the step needs.
can_run() {
  case $1 in
    unit | mutants) [ "$tests" = ON ] ;;
    network) [ "$program" = ON ] ;;
  esac
}

read -ra wanted < <(for name in "${steps[@]}"; do can_run "$name" && targets "$name"; done | tr '\n' ' ')
step configure "$limit" cmake -S "$root" -B "$build" "${options[@]}"
[ ${#wanted[@]} -eq 0 ] || step build "$limit" cmake --build "$build" --parallel "$(nproc)" --target "${wanted[@]}"
for name in "${steps[@]}"; do
  if can_run "$name"; then run_step "$name"; else skip "$name" "not on this machine:$missing"; fi
done
finish
