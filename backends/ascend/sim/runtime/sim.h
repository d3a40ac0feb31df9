// Functions that the libraries of the simulated CANN share, exported by libascendcl.so, used by libhccl.so, libopapi.so
// and tests. No vendor has these names; a program that finds concord_sim_label runs on the simulator.
//
// Memory. Every device address is in a reserved range that cannot be read or written: a host that dereferences one
// gets SIGSEGV immediately. The bytes themselves are at a second, hidden address; concord_sim_translate gives it.
// Operators translate on the stream's thread, when they run, and keep nothing of it.
//
// Threads: any, unless said otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "backends/ascend/acl_abi.h"

#define CONCORD_SIM_EXPORT __attribute__((visibility("default")))

extern "C" {

// "sim-npu": what every result of this runtime is labelled.
CONCORD_SIM_EXPORT const char* concord_sim_label(void);

// Where the bytes of a device address are; an address that is not a device's is returned unchanged. Takes some
// nanoseconds.
CONCORD_SIM_EXPORT void* concord_sim_translate(const void* address);

// 0 if the |bytes| at |address| lie in one live allocation of a device. Else the code, with the reason as this
// thread's error message; |what| names the argument in it ("the operator's input 2").
CONCORD_SIM_EXPORT int32_t concord_sim_check_device_memory(const void* address, size_t bytes, const char* what);

// Queues work on |stream| (null: the current context's default stream) under |name|, which has to live forever.
// |run|(state) is called on the stream's thread, several times if the work is captured and replayed; a result other
// than 0 is the stream's failure, with the message of concord_sim_set_message. |stop|(state), which may be null, is
// called from another thread when the stream is aborted while the work runs. |drop|(state) frees the state, always.
// Returns 0, or what was wrong with the stream; then |drop| has been called.
CONCORD_SIM_EXPORT int32_t concord_sim_launch(void* stream, const char* name, int32_t (*run)(void* state),
                                              void (*stop)(void* state), void (*drop)(void* state), void* state);

// The sentence that goes with the code which the caller is about to return; kept for aclGetRecentErrMsg of this thread.
CONCORD_SIM_EXPORT void concord_sim_set_message(const char* text);

// Returns the device of |stream| (null: the current context's), or -1 with a message if there is none.
CONCORD_SIM_EXPORT int32_t concord_sim_device_of(void* stream);

// The number of |device| on the machine, whatever ASCEND_RT_VISIBLE_DEVICES shows of it; -1 if there is none.
CONCORD_SIM_EXPORT int32_t concord_sim_physical_device(int32_t device);

// Counts a call of |name| for the rules of CONCORD_SIM_NPU_FAULT: waits if one says so, and returns the code that
// this call has to fail with, or 0. For the functions of the other libraries; the runtime's own count themselves, and
// so does concord_sim_launch.
CONCORD_SIM_EXPORT int32_t concord_sim_count_call(const char* name);

// Takes |bytes| of the memory of |device| without an address for them, as a communicator's buffers do; negative gives
// back. 207001 if there is not enough.
CONCORD_SIM_EXPORT int32_t concord_sim_charge(int32_t device, int64_t bytes);

// Replaces the rules of CONCORD_SIM_NPU_FAULT (docs/ascend-sim.md has the grammar); null or "" removes them. 100000
// where |rules| cannot be read.
CONCORD_SIM_EXPORT int32_t concord_sim_set_faults(const char* rules);

// How many calls of |name| were counted since the rules were last set. Counts only while there are rules.
CONCORD_SIM_EXPORT int64_t concord_sim_calls_of(const char* name);
}

namespace concord::ascend::sim {

// concord_sim_launch for a callable that returns a code. It is copied to the heap, and called again when replayed.
template <class Work>
int32_t launch(void* stream, const char* name, Work work, std::function<void()> stop = nullptr) {
  struct State {
    Work work;
    std::function<void()> stop;
  };
  auto* const state = new State{std::move(work), std::move(stop)};
  return concord_sim_launch(
      stream, name, [](void* held) -> int32_t { return static_cast<State*>(held)->work(); },
      state->stop == nullptr ? nullptr : +[](void* held) { static_cast<State*>(held)->stop(); },
      [](void* held) { delete static_cast<State*>(held); }, state);
}

template <class Type>
Type* translate(Type* address) {
  return static_cast<Type*>(concord_sim_translate(address));
}

}  // namespace concord::ascend::sim
