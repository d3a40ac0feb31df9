// The profiler extension: mstx ranges, which msprof and MindStudio Insight show (msprof --msproftx=on). Whether
// something is recorded is decided outside of the process, so start and stop do nothing. Without libms_tools_ext.so
// ranges are only counted. Threads: any thread, any time; ranges belong to the calling thread.
#pragma once

#include "backends/ascend/profiler/mstx_abi.h"

namespace concord::ascend {

struct Mstx {
  abi::fn::mstxMarkA* mstxMarkA = nullptr;
  abi::fn::mstxRangeStartA* mstxRangeStartA = nullptr;
  abi::fn::mstxRangeEnd* mstxRangeEnd = nullptr;

  bool is_there() const { return mstxMarkA != nullptr && mstxRangeStartA != nullptr && mstxRangeEnd != nullptr; }
};

class Profiler {
 public:
  void range_push(const char* name);
  void range_pop();
  void mark(const char* name);
  void start() {}
  void stop() {}
};

}  // namespace concord::ascend
