#include "backends/cpu/rng.h"

#include "backends/cpu/random_fill.h"
#include "backends/cpu/stream.h"
#include "platform/sdk/checks.hpp"

namespace concord::cpu {

void Rng::fill(const concord_rng_request* request, concord_stream stream) {
  streams_.submit(stream, [known = sdk::read_rng_request(request)] { fill_random(known, fill_threads(known.count)); });
}

}  // namespace concord::cpu
