#include "core/optim/offload_memory.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <vector>

#include "core/base/bytes_text.h"
#include "core/base/config_error.h"
#include "core/base/stable_hash.h"
#include "core/mesh/agreement.h"

namespace concord {
namespace {

// An id of this machine, or of the container on it: equal for all ranks that share it.
int64_t machine_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return static_cast<int64_t>(stable_hash(boot + " " + host.data()));
}

HostMemory memory_to_use(double limit_gib) {
  constexpr double kGiB = 1 << 30;
  HostMemory memory = available_host_memory();
  if (limit_gib <= 0 || limit_gib * kGiB >= static_cast<double>(memory.available)) return memory;
  return {static_cast<int64_t>(limit_gib * kGiB), "host_memory_limit"};
}

}  // namespace

std::string offload_shortage(const OffloadMemory& needed, const HostMemory& memory) {
  if (needed.bytes <= memory.available) return "";
  const auto left = static_cast<double>(std::max<int64_t>(memory.available - needed.layer_inputs, 0));
  const auto state = static_cast<double>(std::max<int64_t>(needed.bytes - needed.layer_inputs, 1));
  const double fitting = std::floor(needed.fraction * left / state * 100) / 100;
  const std::string inputs =
      needed.layer_inputs > 0 ? fmt::format(" and {} of layer inputs", bytes_text(needed.layer_inputs)) : "";
  return fmt::format(
      "offloading needs {} ({} bytes) of pinned host memory on this machine, for {} rank{} with "
      "optimizer_offload_fraction {:g}{}, but {} ({} bytes) are available ({}). Set optimizer_offload_fraction to at "
      "most {:g}{}, share the state between more ranks on other machines (use_distributed_optimizer), or provide more "
      "memory",
      bytes_text(needed.bytes), needed.bytes, needed.ranks, needed.ranks == 1 ? "" : "s", needed.fraction, inputs,
      bytes_text(memory.available), memory.available, memory.limit, fitting,
      inputs.empty() ? "" : ", cpu_offloading_num_layers to fewer layers");
}

void check_offload_memory(ParallelContext& job, const OffloadMemory& own, double limit_gib) {
  const int64_t machine = machine_id();
  const std::vector<int64_t> machines = all_gather_scalar(job, machine), needs = all_gather_scalar(job, own.bytes),
                             inputs = all_gather_scalar(job, own.layer_inputs);
  OffloadMemory needed{.fraction = own.fraction};
  for (size_t rank = 0; rank < machines.size(); ++rank) {
    if (machines[rank] != machine) continue;
    needed.bytes += needs[rank];
    needed.layer_inputs += inputs[rank];
    ++needed.ranks;
  }
  run_and_propagate_errors(job, [&] {
    const std::string text = offload_shortage(needed, memory_to_use(limit_gib));
    if (!text.empty()) throw ConfigError(text);
  });
}

}  // namespace concord
