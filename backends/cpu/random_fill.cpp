// Compiled so that loops over floats vectorise; the values stay what they are (see CMakeLists.txt).
#include "backends/cpu/random_fill.h"

#include "platform/sdk/philox_fill.hpp"

namespace concord::cpu {

void fill_random(const concord_rng_request& request, int threads) {
  sdk::fill_random(request, 0, request.count, request.destination, threads);
}

int fill_threads(int64_t count) { return sdk::fill_threads(count); }

}  // namespace concord::cpu
