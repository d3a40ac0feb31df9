#include "backends/ascend/profiler/profiler.h"

#include <vector>

#include "backends/ascend/cann.h"
#include "platform/sdk/checks.hpp"
#include "platform/sdk/symbol_table.hpp"

namespace concord::ascend {
namespace {

thread_local std::vector<abi::mstxRangeId> open_ranges;

// At the first use: most programs need no ranges.
const Mstx& mstx() {
  static const Mstx found = [] {
    Mstx functions;
    try {
      const sdk::VendorLibrary library =
          sdk::open_vendor_library("mstx", cann_candidates("ascend.mstx", {"libms_tools_ext.so"}), "mstxMarkA",
                                   "it is in CANN's toolkit (8.1 and later)");
      const sdk::VendorSymbol symbols[] = {sdk::required_symbol("mstxMarkA", &functions.mstxMarkA),
                                           sdk::required_symbol("mstxRangeStartA", &functions.mstxRangeStartA),
                                           sdk::required_symbol("mstxRangeEnd", &functions.mstxRangeEnd)};
      sdk::resolve_symbols(library, symbols);
    } catch (const sdk::Failure& failure) {
      sdk::log(CONCORD_LOG_DEBUG, sdk::text("ascend: ranges are not passed to msprof: %s", failure.what()));
      return Mstx{};
    }
    return functions;
  }();
  return found;
}

}  // namespace

void Profiler::range_push(const char* name) {
  sdk::check_not_null(name, "name");
  open_ranges.push_back(mstx().is_there() ? mstx().mstxRangeStartA(name, nullptr) : 0);
}

void Profiler::range_pop() {
  if (open_ranges.empty()) sdk::fail(CONCORD_STATUS_FAILED_PRECONDITION, "range_pop: this thread has no open range");
  const abi::mstxRangeId range = open_ranges.back();
  open_ranges.pop_back();
  if (range != 0) mstx().mstxRangeEnd(range);
}

void Profiler::mark(const char* name) {
  sdk::check_not_null(name, "name");
  if (mstx().is_there()) mstx().mstxMarkA(name, nullptr);
}

}  // namespace concord::ascend
