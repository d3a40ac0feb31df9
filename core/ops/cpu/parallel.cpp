#include "core/ops/cpu/parallel.h"

#include <ATen/Parallel.h>

namespace concord::ops {

int64_t threads() { return at::get_num_threads(); }

void parallel(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  at::parallel_for(0, count, grain, body);
}

}  // namespace concord::ops
