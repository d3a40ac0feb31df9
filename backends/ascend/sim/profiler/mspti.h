// The functions that the simulated libmspti.so exports, for the file that defines them and for tests.
#pragma once

#include "backends/ascend/profiler/mspti_abi.h"
#include "backends/ascend/sim/runtime/sim.h"

#define CONCORD_SIM_MSPTI(name) CONCORD_SIM_EXPORT concord::ascend::abi::fn::name name

extern "C" {
CONCORD_SIM_MSPTI(msptiSubscribe);
CONCORD_SIM_MSPTI(msptiUnsubscribe);
CONCORD_SIM_MSPTI(msptiActivityRegisterCallbacks);
CONCORD_SIM_MSPTI(msptiActivityEnable);
CONCORD_SIM_MSPTI(msptiActivityDisable);
CONCORD_SIM_MSPTI(msptiActivityFlushAll);
CONCORD_SIM_MSPTI(msptiActivityGetNextRecord);
}
