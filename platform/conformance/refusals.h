// Calls with invalid arguments, one list per table. Each has to be refused with INVALID_ARGUMENT and a message, on
// every plugin, without a crash and without harm to anything else.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "platform/conformance/context.h"

namespace concord::conformance {

struct Refusal {
  std::string what;  // "memory.allocate of -1 bytes"
  std::function<concord_status()> call;
};

// The lists refer to |t| and to things that they own; every rank of a test gets the same list.
std::vector<Refusal> device_refusals(Context& t);
std::vector<Refusal> memory_refusals(Context& t);
std::vector<Refusal> stream_refusals(Context& t);
std::vector<Refusal> event_refusals(Context& t);
std::vector<Refusal> rng_refusals(Context& t);
std::vector<Refusal> comm_setup_refusals(Context& t);
std::vector<Refusal> collective_refusals(Context& t, concord_comm comm, concord_stream stream);
std::vector<Refusal> transfer_refusals(Context& t, concord_comm comm, concord_stream stream);

// Failed if one of them is not answered with INVALID_ARGUMENT.
void require_refused(Context& t, const std::vector<Refusal>& refusals);

}  // namespace concord::conformance
