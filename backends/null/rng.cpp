#include "rng.h"

#include "status.h"

namespace concord::null {

void Rng::fill(const concord_rng_request*, concord_stream) { unimplemented("rng.fill"); }

}  // namespace concord::null
