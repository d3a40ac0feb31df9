# For the scripts device_*.sh: steps with a limit and a log each, and a summary at the end. Source it after setting
# |root|.
build=${BUILD:-$root/build-device}
out=${OUT:-$build/report}
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

write_environment() {
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
}

# Sets and exports CONCORD_TORCH, where python3 has a torch.
find_torch() {
  CONCORD_TORCH=${CONCORD_TORCH:-$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null || true)}
  export CONCORD_TORCH
}

finish() {
  printf '%s\n' "${summary[@]}" | tee "$out/summary.txt"
  exit $failed
}
