#!/usr/bin/env bash
# Builds the cuda backend on a machine with a device and runs all that needs one: the device test, the conformance kit
# with 1 to 4 ranks on one device, the benchmark beside raw calls; and, where what they need is installed, the unit
# tests and a small network in libtorch. Needs nvcc, CMake, a C++20 compiler and NCCL (a torch wheel has it); no
# network.
#
#   backends/cuda/device_check.sh [--quick] [--world N]
#
# --quick runs the quick part of the conformance kit. Reports go to $OUT (default: build-device/report). Ends with one
# line a step and exit code 0 where all of them passed. About eight minutes on 16 cores, three with --quick.
set -u -o pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
quick=()
world=4
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=(--quick) ;;
    --world) world=$2; shift ;;
    *) echo "unknown argument $1; see the head of $0" >&2; exit 2 ;;
  esac
  shift
done
. "$root/backends/cuda/device_steps.sh"
write_environment
find_torch

# What is not there is left out of the build, and said.
tests=ON program=ON missing=
for package in GTest nlohmann_json; do has_package $package || { tests=OFF program=OFF missing+=" $package"; }; done
has_package fmt || { program=OFF missing+=" fmt"; }
has_header CLI/CLI.hpp || { program=OFF missing+=" CLI11"; }
[ -n "$CONCORD_TORCH" ] || { program=OFF missing+=" torch"; }
[ -z "$missing" ] || echo "not on this machine:$missing"
options=(-DPLATFORM=cuda -DCONCORD_TESTS=$tests -DCONCORD_PROGRAM=$program -DCONCORD_WITH_TORCH=$program
  -DCONCORD_BENCHMARKS=OFF)
command -v ninja >/dev/null && options+=(-G Ninja)

step configure 120 cmake -S "$root" -B "$build" "${options[@]}"
step build 480 cmake --build "$build" --parallel "$(nproc)"

plugin=$build/lib/libconcord_cuda.so
export CONCORD_PLUGIN_PATH=$build/lib
step device 400 "$build/bin/concord-cuda-device-test" --plugin "$plugin" --json "$out/device.json"
# Several ranks share the device: NCCL takes them for ranks of different hosts and talks over loopback.
step conform 560 env CONCORD_CUDA_SHARED_DEVICE=1 "$build/bin/concord-conform" --platform cuda \
  --world "$world" "${quick[@]}" --report "$out/conformance.json"
step bench 200 "$build/bin/concord-cuda-bench" --plugin "$plugin"
if [ "$tests" = ON ]; then
  step unit 300 ctest --test-dir "$build" -R '^cuda' -j 8 --output-on-failure
else
  skip unit "not on this machine:$missing"
fi
if [ "$program" = ON ]; then
  step network 120 env CONCORD_PLATFORM=cuda "$build/tests/network_parity_test"
else
  skip network "not on this machine:$missing"
fi

finish
