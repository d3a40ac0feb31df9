// Ranges of the layers' backward passes in a profile, as those of their forward passes are (RECORD_USER_SCOPE). The
// residual stream between two layers passes through a node of the autograd graph, at which the range of the later layer
// ends and that of the earlier one begins: autograd runs all that a gradient depends on before it.
//
// While no profile is recorded there are no such nodes. Threads: forward on the calling thread; a range belongs to the
// thread that runs backward.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/models/layers/layer_context.h"

namespace concord {

// The ranges of one forward pass over layers.
class BackwardRanges {
 public:
  // Returns |stream|, the input of the first layer.
  Residual before_layers(const Residual& stream) { return mark(stream, -1); }
  // Returns |stream|, the output of layer |number|, whose backward pass becomes the range "layers.N backward". A layer
  // whose input needs no gradient has none.
  Residual after_layer(const Residual& stream, int64_t number) { return mark(stream, number); }

 private:
  Residual mark(const Residual& stream, int64_t number);

  bool has_end_ = false;  // whether there is a node before the current layer
};

// Closes or opens the calling thread's range. The profile calls it before it opens the range of autograd's node |name|:
// libtorch reports a node's hooks within that of the node, where ranges would not nest.
void turn_backward_range(std::string_view name);

}  // namespace concord
