#include "backends/ascend/sim/runtime/process.h"

#include <atomic>
#include <cstdio>

#include "backends/ascend/sim/runtime/error.h"
#include "backends/ascend/sim/runtime/settings.h"

namespace concord::ascend::sim {
namespace {

std::atomic<int> inits{0};

void announce() {
  static std::atomic<bool> done{false};
  if (done.exchange(true)) return;
  std::fprintf(stderr, "[sim-npu] simulated CANN %s, SOC %s, %d devices of %llu MiB: no hardware is used\n",
               settings().cann.c_str(), settings().soc.c_str(), settings().devices,
               static_cast<unsigned long long>(settings().memory_bytes >> 20));
}

[[noreturn]] void repeated_finalize() {
  fail(abi::kAclRepeatFinalize, "aclFinalize was called without aclInit, or twice");
}

}  // namespace

bool Process::initialized() { return inits.load(std::memory_order_acquire) > 0; }

void Process::init() {
  announce();
  if (inits.fetch_add(1) > 0) fail(abi::kAclRepeatInitialize, "aclInit was already called; this call is only counted");
}

void Process::finalize() {
  if (inits.exchange(0) == 0) repeated_finalize();
}

void Process::finalize_reference() {
  int count = inits.load();
  do {
    if (count == 0) repeated_finalize();
  } while (!inits.compare_exchange_weak(count, count - 1));
}

}  // namespace concord::ascend::sim
