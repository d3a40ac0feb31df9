// Functions that the libraries of the simulated CANN share, exported by libascendcl.so, used by libhccl.so, libopapi.so
// and tests. The vendor has no functions of these names; a program that finds concord_sim_label runs on the simulator.
//
// Memory. Every device address is in a reserved range that cannot be read or written: a host that dereferences one
// gets SIGSEGV immediately. The bytes are at a second, hidden address, which concord_sim_translate returns. Operators
// translate on the stream's thread, when they run, and do not store the result.
//
// Threads: any, unless stated otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "backends/ascend/acl_abi.h"

#define CONCORD_SIM_EXPORT __attribute__((visibility("default")))

extern "C" {

// Returns "sim-npu", the label of every result of this runtime.
CONCORD_SIM_EXPORT const char* concord_sim_label(void);

// Returns the address of the bytes of a device address; other addresses are returned unchanged. Takes some nanoseconds.
CONCORD_SIM_EXPORT void* concord_sim_translate(const void* address);

// Returns 0 if the |bytes| at |address| lie in one live allocation of a device; otherwise a code, with the reason as
// this thread's error message, in which |what| names the argument ("the operator's input 2").
CONCORD_SIM_EXPORT int32_t concord_sim_check_device_memory(const void* address, size_t bytes, const char* what);

// Queues work on |stream| (null: the current context's default stream) under |name|, which is never freed.
// |run|(state) is called on the stream's thread, several times if the work is captured and replayed; a result other
// than 0 is the stream's failure, with the message of concord_sim_set_message. |stop|(state), which may be null, is
// called from another thread when the stream is aborted while the work runs. |drop|(state) frees the state, always.
// Returns 0, or a code if the stream is invalid or has failed; then |drop| has been called.
CONCORD_SIM_EXPORT int32_t concord_sim_launch(void* stream, const char* name, int32_t (*run)(void* state),
                                              void (*stop)(void* state), void (*drop)(void* state), void* state);

// Sets this thread's message for aclGetRecentErrMsg, for the code that the caller will return.
CONCORD_SIM_EXPORT void concord_sim_set_message(const char* text);

// Returns the device of |stream| (null: the current context's), or -1 with a message if there is none.
CONCORD_SIM_EXPORT int32_t concord_sim_device_of(void* stream);

// Returns the number of |device| on the machine, without ASCEND_RT_VISIBLE_DEVICES; -1 if it does not exist.
CONCORD_SIM_EXPORT int32_t concord_sim_physical_device(int32_t device);

// Counts a call of |name| for the rules of CONCORD_SIM_NPU_FAULT: waits if a rule delays it, and returns the code with
// which the call must fail, or 0. For functions of the other libraries; the runtime's own functions and
// concord_sim_launch count their calls themselves.
CONCORD_SIM_EXPORT int32_t concord_sim_count_call(const char* name);

// Counts work under |name| that has run on a device, with the bytes of device memory that it read and wrote.
CONCORD_SIM_EXPORT void concord_sim_count_work(const char* name, int64_t bytes_read, int64_t bytes_written);

// Returns how often work under |name| (null: under any name) has run in this process, and its bytes; the pointers may
// be null. CONCORD_SIM_NPU_REPORT writes the same at the end of the process.
CONCORD_SIM_EXPORT int64_t concord_sim_work_of(const char* name, int64_t* out_bytes_read, int64_t* out_bytes_written);

// Counts an operator of libopapi.so like concord_sim_count_work, with the floating-point operations of its products.
CONCORD_SIM_EXPORT void concord_sim_count_operator(const char* name, int64_t bytes_read, int64_t bytes_written,
                                                   double product_flops);

// One piece of work that a device did, under the name of the function that queued it. |stream| is aclrtStreamGetId's;
// -1 for synchronous copies. Times are those of CLOCK_REALTIME.
struct concord_sim_work {
  const char* name;
  int32_t device, stream;
  int64_t begin_ns, end_ns;
  int64_t bytes;
};
typedef void concord_sim_work_observer(const struct concord_sim_work* work);
// Sets the function that is told of each piece of work from here on, on the thread that did it; null ends that.
CONCORD_SIM_EXPORT void concord_sim_observe_work(concord_sim_work_observer* observe);

// Returns the floating-point operations of the products under |name|, as counted by concord_sim_count_operator.
CONCORD_SIM_EXPORT double concord_sim_product_flops_of(const char* name);

// Takes |bytes| of the memory of |device| without an address, for a communicator's buffers; negative values return
// them. Returns 207001 if the device has too little left.
CONCORD_SIM_EXPORT int32_t concord_sim_charge(int32_t device, int64_t bytes);

// Replaces the rules of CONCORD_SIM_NPU_FAULT (docs/ascend-sim.md has the grammar); null or "" removes them. Returns
// 100000 for invalid |rules|.
CONCORD_SIM_EXPORT int32_t concord_sim_set_faults(const char* rules);

// Returns the number of calls of |name| since the rules were last set. Calls are counted only while there are rules.
CONCORD_SIM_EXPORT int64_t concord_sim_calls_of(const char* name);
}

namespace concord::ascend::sim {

// Calls concord_sim_launch with a callable that returns a code. It is copied to the heap, and called for each replay.
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
