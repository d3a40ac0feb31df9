#include "core/optim/offload_memory.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "core/base/bytes_text.h"
#include "core/base/config_error.h"
#include "core/base/quoted.h"
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

HostMemory memory_to_use() {
  constexpr const char* kVariable = "CONCORD_HOST_MEMORY";
  constexpr double kGiB = 1 << 30, kMaxGib = 1e6;
  HostMemory memory = available_host_memory();
  const char* const given = std::getenv(kVariable);
  if (given == nullptr || *given == '\0') return memory;
  char* end = nullptr;
  const double gib = std::strtod(given, &end);
  if (*end != '\0' || !(gib > 0 && gib <= kMaxGib)) {
    throw ConfigError(
        fmt::format("{} is {}; must be a number of GiB > 0 and <= {:g}", kVariable, quoted(given), kMaxGib));
  }
  const auto bytes = static_cast<int64_t>(gib * kGiB);
  return bytes < memory.available ? HostMemory{bytes, kVariable} : memory;
}

}  // namespace

std::string offload_shortage(const OffloadMemory& needed, const HostMemory& memory) {
  if (needed.bytes <= memory.available) return "";
  const double share = static_cast<double>(memory.available) / static_cast<double>(needed.bytes);
  const double fitting = std::floor(needed.fraction * share * 100) / 100;
  return fmt::format(
      "optimizer_cpu_offload needs {} ({} bytes) of pinned host memory on this machine, for {} rank{} with "
      "optimizer_offload_fraction {:g}, but {} ({} bytes) are available ({}). Set optimizer_offload_fraction to at "
      "most "
      "{:g}, share the state between more ranks on other machines (use_distributed_optimizer), or provide more memory",
      bytes_text(needed.bytes), needed.bytes, needed.ranks, needed.ranks == 1 ? "" : "s", needed.fraction,
      bytes_text(memory.available), memory.available, memory.limit, fitting);
}

void check_offload_memory(ParallelContext& job, int64_t bytes, double fraction) {
  const int64_t own = machine_id();
  const std::vector<int64_t> machines = all_gather_scalar(job, own), needs = all_gather_scalar(job, bytes);
  OffloadMemory needed{.fraction = fraction};
  for (size_t rank = 0; rank < machines.size(); ++rank) {
    if (machines[rank] != own) continue;
    needed.bytes += needs[rank];
    ++needed.ranks;
  }
  run_and_propagate_errors(job, [&] {
    if (const std::string text = offload_shortage(needed, memory_to_use()); !text.empty()) throw ConfigError(text);
  });
}

}  // namespace concord
