#include "core/models/layers/kv_cache.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "core/ops/attention/cached_attention.h"
#include "platform/loader/error.h"

namespace concord {

using at::Tensor;

KvCache::KvCache(const Sizes& sizes, LayerAngles angles, const at::TensorOptions& options)
    : sizes_(sizes),
      angles_(std::move(angles)),
      options_(options),
      keys_(static_cast<size_t>(sizes.layers)),
      values_(keys_.size()),
      states_(keys_.size()) {
  const auto whole = options.dtype(at::kLong);
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
  counts_ = tokens.counts;
  seen_ = lengths_ + counts_;
  place_ = lengths_.clamp_max(sizes_.capacity - 1);  // position for a full row, which receives nothing
}

void KvCache::place_prompts(LayerAngles angles, const Tensor& shifts) {
  prompt_angles_ = std::move(angles);
  shifts_ = shifts;
}

LayerAngles KvCache::angles() const {
  if (longest_ == 0 && prompt_angles_) return *prompt_angles_;
  const Tensor position = shifts_.defined() ? place_ + shifts_ : place_;
  return angles_.each([&](const Tensor& table) {
    return longest_ == 0 ? table.narrow(0, 0, step_).unsqueeze(1) : table.index_select(0, position).unsqueeze(0);
  });
}

Tensor KvCache::attend(int64_t number, const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionOptions& options) {
  Tensor& keys = keys_[index_of(number)];
  Tensor& values = values_[index_of(number)];
  if (longest_ == 0) {
    keys = at::empty({sizes_.rows, sizes_.capacity, sizes_.kv_heads, sizes_.head_dim}, options_);
    values = at::empty(keys.sizes(), options_);
    keys.narrow(1, 0, step_).copy_(k);
    values.narrow(1, 0, step_).copy_(v);
    return attention(q, k, v, options);
  }
  keys.index_put_({row_, place_}, k.squeeze(1));
  values.index_put_({row_, place_}, v.squeeze(1));
  const int64_t longest = has_equal_steps_ ? sizes_.capacity : std::min(longest_ + 1, sizes_.capacity);
  return cached_attention(q, keys.narrow(1, 0, longest), values.narrow(1, 0, longest), seen_, options);
}

Tensor KvCache::is_real(int64_t tokens) const {
  return at::arange(tokens, counts_.options()).unsqueeze(0) < counts_.unsqueeze(1);
}

Tensor KvCache::last_of_rows(const Tensor& x, int64_t count) const {
  const Tensor place = counts_.unsqueeze(1) + at::arange(count, counts_.options()).unsqueeze(0);
  return x.gather(1, place.unsqueeze(-1).expand({-1, -1, x.size(2)}));
}

void KvCache::keep(const Tensor& value, Tensor* place) {
  if (place->defined()) {
    place->copy_(value);
  } else {
    *place = value.clone();
  }
}

void KvCache::end() {
  lengths_.copy_(seen_);
  longest_ = std::min(longest_ + step_, sizes_.capacity);
}

}  // namespace concord
