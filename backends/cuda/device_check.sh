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
build=${BUILD:-$root/build-device}
out=${OUT:-$build/report}
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
mkdir -p "$build" "$out"

summary=()
failed=0

# step NAME SECONDS COMMAND...: runs it into $out/NAME.log; a step that fails does not stop the others.
step() {
  local name=$1 limit=$2 start=$SECONDS verdict=pass
  shift 2
  echo "== $name: $*"
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1 || verdict="FAIL ($?)"
  [ "$verdict" = pass ] || failed=1
  tail -n 4 "$out/$name.log" | sed 's/^/   /'
  summary+=("$(printf '%-12s %4d s  %s' "$name" $((SECONDS - start)) "$verdict")")
}

skip() {
  echo "== $1: skipped, $2"
  summary+=("$(printf '%-12s         skipped: %s' "$1" "$2")")
}

# Whether CMake would find the package, the header. CMAKE_PREFIX_PATH may name more places.
prefixes() { tr ':' '\n' <<<"${CMAKE_PREFIX_PATH:-}:/usr:/usr/local"; }
has_file() {
  local prefix pattern
  while read -r prefix; do
    for pattern in "$@"; do [ -z "$prefix" ] || ! compgen -G "$prefix/$pattern" >/dev/null || return 0; done
  done < <(prefixes)
  return 1
}
has_package() { has_file "lib/cmake/$1/*onfig.cmake" "lib/*/cmake/$1/*onfig.cmake" "share/cmake/$1/*onfig.cmake"; }
has_header() { has_file "include/$1"; }

{
  date -u +%Y-%m-%dT%H:%M:%SZ
  git -C "$root" log -1 --format='commit %H' 2>/dev/null
  nvidia-smi --query-gpu=name,driver_version,memory.total,pci.bus_id --format=csv,noheader
  nvcc --version | tail -n 2
  cmake --version | head -n 1
  c++ --version | head -n 1
  python3 -c 'import torch; print("torch", torch.__version__, "NCCL", ".".join(map(str, torch.cuda.nccl.version())))'
} >"$out/environment.txt" 2>&1
cat "$out/environment.txt"

torch=${CONCORD_TORCH:-$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null || true)}
[ -z "$torch" ] || export CONCORD_TORCH=$torch

# What is not there is left out of the build, and said.
tests=ON program=ON missing=
for package in GTest nlohmann_json; do has_package $package || { tests=OFF program=OFF missing+=" $package"; }; done
has_package fmt || { program=OFF missing+=" fmt"; }
has_header CLI/CLI.hpp || { program=OFF missing+=" CLI11"; }
[ -n "$torch" ] || { program=OFF missing+=" torch"; }
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

printf '%s\n' "${summary[@]}" | tee "$out/summary.txt"
exit $failed
