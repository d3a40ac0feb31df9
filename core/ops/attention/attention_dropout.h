// Dropout of attention probabilities, after the softmax. A (query, key) pair is dropped by the random number at its own
// address, which depends only on the position of the pair in the whole. So a rank that holds some of the heads or
// queries drops the same pairs as a single process, and backward can draw them again.
#pragma once

#include <cstdint>

namespace concord {

// Row b, head h, query i and key j of a call use the uniform number (core/ops/dropout.h) at position
//   ((head + h) * 2^24 + query + i) * 2^24 + token + j   of the stream   (key, site * 2^32 + row + b).
struct AttentionDropout {
  double p = 0;  // 0: none
  uint64_t key = 0;
  uint64_t site = 0;
  int64_t row = 0, head = 0, query = 0, token = 0;  // position of the first element of the call in the whole
};

}  // namespace concord
