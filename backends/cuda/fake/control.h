// Functions by which a test makes the fake NCCL misbehave and sets the records of the fake CUPTI. They are exported by
// the libraries that the plugin has loaded; a test looks them up by name.
#pragma once

#include <cstdint>

extern "C" {
// Makes the next operation, and only that one, return |result| instead of being queued.
void fake_nccl_fail_next_call(int result);
// Sets the asynchronous error of every communicator to |result|.
void fake_nccl_set_async_error(int result);
// While |on|, an operation does not return, like NCCL's on the first use of a connection whose peer does not join.
void fake_nccl_hold_calls(int on);
// While |on|, ncclCommDestroy does not return, like NCCL's while a peer on the machine has not called it.
void fake_nccl_hold_destroy(int on);
// Returns how often ncclCommAbort was called while a thread was inside the communicator: NCCL would have crashed.
int fake_nccl_aborts_under_a_caller();
// Returns the number of communicators that have not been freed.
int fake_nccl_live();

// Adds a record of device work, with times of CLOCK_MONOTONIC; 0: it has not begun, or not ended.
void fake_cupti_kernel(const char* name, unsigned device, unsigned stream, int64_t begin_ns, int64_t end_ns);
void fake_cupti_copy(int kind, unsigned device, unsigned stream, int64_t begin_ns, int64_t end_ns);
void fake_cupti_fill(unsigned device, unsigned stream, int64_t begin_ns, int64_t end_ns);
// Makes the fake report |count| dropped records.
void fake_cupti_drop(int count);
// Makes enabling the records of fills fail with |result|, until it is called with 0.
void fake_cupti_fail_enable(int result);
}
