// Dropout of attention's probabilities, after the softmax: a pair of a query and a key is dropped or kept by the random
// number at its own address, which depends on nothing but where the pair is in the whole. So a rank that has some of
// the heads, or some of the queries, drops what one process would drop, and a backward that draws again drops the same.
#pragma once

#include <cstdint>

namespace concord {

// The number of row b, head h, query i and key j of a call is the uniform one (core/ops/dropout.h) at position
//   ((head + h) * 2^24 + query + i) * 2^24 + token + j   of the stream   (key, site * 2^32 + row + b).
struct AttentionDropout {
  double p = 0;  // 0: none
  uint64_t key = 0;
  uint64_t site = 0;
  int64_t row = 0, head = 0, query = 0, token = 0;  // where the first of the call are in the whole
};

}  // namespace concord
