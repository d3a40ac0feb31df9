// How a test makes the fake NCCL misbehave, and what the fake CUPTI records. The functions are in the library that the
// plugin has loaded; a test finds them there by name.
#pragma once

#include <cstdint>

extern "C" {
// The next operation returns |result| instead of being queued; once.
void fake_nccl_fail_next_call(int result);
// Every communicator's asynchronous error becomes |result|.
void fake_nccl_set_async_error(int result);
// While |on|, an operation stays inside its call, as NCCL does on the first use of a connection whose peer does not
// come.
void fake_nccl_hold_calls(int on);
// While |on|, ncclCommDestroy does not return, as NCCL's does not while a peer on the machine holds on.
void fake_nccl_hold_destroy(int on);
// How often ncclCommAbort was called while a thread was inside the communicator: NCCL would have crashed.
int fake_nccl_aborts_under_a_caller();
// How many communicators are alive in NCCL.
int fake_nccl_live();

// A device did something, at times of CLOCK_MONOTONIC; 0: it has not begun, or not ended.
void fake_cupti_kernel(const char* name, unsigned device, unsigned stream, int64_t begin_ns, int64_t end_ns);
void fake_cupti_copy(int kind, unsigned device, unsigned stream, int64_t begin_ns, int64_t end_ns);
void fake_cupti_fill(unsigned device, unsigned stream, int64_t begin_ns, int64_t end_ns);
// The fake had no space for |count| records.
void fake_cupti_drop(int count);
// Until it is called with 0, fills cannot be recorded: |result| is what CUPTI says.
void fake_cupti_fail_enable(int result);
}
