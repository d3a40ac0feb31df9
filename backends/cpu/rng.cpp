#include "backends/cpu/rng.h"

#include "backends/cpu/random_fill.h"
#include "backends/cpu/stream.h"
#include "platform/sdk/checks.hpp"

namespace concord::cpu {

void Rng::fill(const concord_rng_request* request, concord_stream stream) {
  sdk::check_rng_request(request);
  streams_.submit(stream, [request = *request] { fill_random(request, fill_threads(request.count)); });
}

}  // namespace concord::cpu
