// The cosines and sines of rope for the layers of a model, of which those with a window may have their own.
#pragma once

#include <ATen/core/Tensor.h>

namespace concord {

struct LayerAngles {
  at::Tensor cos, sin;                // one row per position
  at::Tensor window_cos, window_sin;  // angles of layers with a window; undefined: same as others
  at::Tensor query_scale;             // factor of queries, one per position; undefined: 1

  template <class Change>
  LayerAngles each(const Change& change) const {
    const auto maybe = [&](const at::Tensor& x) { return x.defined() ? change(x) : x; };
    return {maybe(cos), maybe(sin), maybe(window_cos), maybe(window_sin), maybe(query_scale)};
  }
};

}  // namespace concord
