// The functions that the simulated libms_tools_ext.so exports, for the file that defines them and for tests.
#pragma once

#include "backends/ascend/profiler/mstx_abi.h"
#include "backends/ascend/sim/runtime/sim.h"

extern "C" {
CONCORD_SIM_EXPORT concord::ascend::abi::fn::mstxMarkA mstxMarkA;
CONCORD_SIM_EXPORT concord::ascend::abi::fn::mstxRangeStartA mstxRangeStartA;
CONCORD_SIM_EXPORT concord::ascend::abi::fn::mstxRangeEnd mstxRangeEnd;

// Returns what was recorded in this process, a line each: "start ID TEXT", "end ID", "mark TEXT", in order. The text is
// valid until the next call. The vendor has no such function. CONCORD_SIM_NPU_RANGES=FILE writes the same at the end of
// the process.
CONCORD_SIM_EXPORT const char* concord_sim_ranges(void);
}
