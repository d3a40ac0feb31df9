// Fills memory with the random numbers that platform/sdk/philox.hpp defines: many blocks at a time, on several threads.
#pragma once

#include "platform/abi/rng.h"

namespace concord::cpu {

// Fills request.destination; |request| comes from sdk::read_rng_request. Waits until it is done. Up to |threads|
// threads take part (at least 1: the caller's); the values do not depend on how many. Threads: any thread, any time.
void fill_random(const concord_rng_request& request, int threads);

// How many threads a fill of |count| elements is worth, given the cores that the calling thread may run on.
int fill_threads(int64_t count);

}  // namespace concord::cpu
