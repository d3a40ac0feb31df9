#include "core/models/kv_cache.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "core/ops/cached_attention.h"
#include "platform/loader/error.h"

namespace concord {

using at::Tensor;

KvCache::KvCache(const Sizes& sizes, LayerAngles angles, const at::TensorOptions& options)
    : sizes_(sizes), angles_(std::move(angles)) {
  const auto whole = options.dtype(at::kLong);
  keys_ = at::empty({sizes.layers, sizes.rows, sizes.capacity, sizes.kv_heads, sizes.head_dim}, options);
  values_ = at::empty(keys_.sizes(), options);
  row_ = at::arange(sizes.rows, whole);
  lengths_ = at::zeros({sizes.rows}, whole);
}

void KvCache::begin(const NewTokens& tokens) {
  step_ = tokens.ids.size(1);
  const bool fits = tokens.ids.size(0) == sizes_.rows && step_ <= sizes_.capacity && (step_ == 1 || longest_ == 0);
  if (!fits) {
    throw Error(CONCORD_STATUS_INTERNAL,
                fmt::format("[{}, {}] new tokens for a cache of {} rows with {} of {} tokens; rows must be the same, "
                            "and after the first step one token is new",
                            tokens.ids.size(0), step_, sizes_.rows, longest_, sizes_.capacity));
  }
  seen_ = lengths_ + tokens.counts;
  place_ = lengths_.clamp_max(sizes_.capacity - 1);  // of a full row, which has nothing new
}

LayerAngles KvCache::angles() const {
  return angles_.each([&](const Tensor& table) {
    return longest_ == 0 ? table.narrow(0, 0, step_).unsqueeze(1) : table.index_select(0, place_).unsqueeze(0);
  });
}

Tensor KvCache::attend(int64_t number, const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionOptions& options) {
  const Tensor keys = keys_.select(0, number - sizes_.first_layer);
  const Tensor values = values_.select(0, number - sizes_.first_layer);
  if (longest_ == 0) {
    keys.narrow(1, 0, step_).copy_(k);
    values.narrow(1, 0, step_).copy_(v);
    return attention(q, k, v, options);
  }
  keys.index_put_({row_, place_}, k.squeeze(1));
  values.index_put_({row_, place_}, v.squeeze(1));
  const int64_t longest = std::min(longest_ + 1, sizes_.capacity);
  return cached_attention(q, keys.narrow(1, 0, longest), values.narrow(1, 0, longest), seen_, options);
}

void KvCache::end() {
  lengths_ = seen_;
  longest_ = std::min(longest_ + step_, sizes_.capacity);
}

}  // namespace concord
