#include "backends/null/rng.h"

#include "backends/null/status.h"

namespace concord::null {

void Rng::fill(const concord_rng_request*, concord_stream) { unimplemented("rng.fill"); }

}  // namespace concord::null
