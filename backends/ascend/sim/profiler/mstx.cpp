// A simulated libms_tools_ext.so: it records ranges and marks, as msprof would if it were attached.
#include "backends/ascend/sim/profiler/mstx.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>
#include <string>

#include "platform/base/thread_safety.hpp"

namespace concord::ascend::sim {
namespace {

struct Ranges {
  std::mutex mutex;
  std::string lines CONCORD_GUARDED_BY(mutex);
  std::set<abi::mstxRangeId> open CONCORD_GUARDED_BY(mutex);
  abi::mstxRangeId last CONCORD_GUARDED_BY(mutex) = 0;
};

Ranges& ranges();

void write_ranges() {
  const char* const path = std::getenv("CONCORD_SIM_NPU_RANGES");
  const std::lock_guard lock(ranges().mutex);
  std::ofstream file(path);
  file << ranges().lines;
  if (file.flush()) return;
  std::fprintf(stderr, "[sim-npu] CONCORD_SIM_NPU_RANGES: cannot write %s\n", path);
  std::fflush(stderr);
  std::_Exit(1);
}

Ranges& ranges() {
  static Ranges& only = *[] {
    if (std::getenv("CONCORD_SIM_NPU_RANGES") != nullptr) std::atexit(write_ranges);
    return new Ranges;  // never destroyed: threads may mark until the process ends
  }();
  return only;
}

}  // namespace
}  // namespace concord::ascend::sim

using namespace concord::ascend::sim;

void mstxMarkA(const char* message, concord::ascend::abi::aclrtStream) {
  if (message == nullptr) return;
  const std::lock_guard lock(ranges().mutex);
  ranges().lines += std::string("mark ") + message + "\n";
}

concord::ascend::abi::mstxRangeId mstxRangeStartA(const char* message, concord::ascend::abi::aclrtStream) {
  if (message == nullptr) return 0;
  const std::lock_guard lock(ranges().mutex);
  const concord::ascend::abi::mstxRangeId id = ++ranges().last;
  ranges().open.insert(id);
  ranges().lines += "start " + std::to_string(id) + " " + message + "\n";
  return id;
}

// The vendor ignores an unknown range.
void mstxRangeEnd(concord::ascend::abi::mstxRangeId id) {
  const std::lock_guard lock(ranges().mutex);
  if (ranges().open.erase(id) > 0) ranges().lines += "end " + std::to_string(id) + "\n";
}

const char* concord_sim_ranges(void) {
  static auto* const copy = new std::string;
  const std::lock_guard lock(ranges().mutex);
  *copy = ranges().lines;
  return copy->c_str();
}
