// Sizes of layers whose attention is a gated delta net (gated_delta_rule.h), from config.json: a state of fixed size
// replaces keys and values. Needs no libtorch. Pure values; threads: any.
#pragma once

#include <cstdint>
#include <vector>

namespace concord {

struct DeltaConfig {
  int64_t key_heads = 0;
  int64_t value_heads = 0;  // a multiple of key_heads: neighbours share a key
  int64_t key_dim = 0;      // of a head
  int64_t value_dim = 0;
  int64_t taps = 0;  // tokens that the convolution of queries, keys and values sees
  // Files have the projections of all heads to q, k, v in one tensor, and those to z, b and a in one each. Otherwise
  // they have q, k, v, z head by head, and b, a.
  bool has_plain_projections = false;
  std::vector<bool> layers;  // for each layer of the model: whether it is one of these; empty if none is

  bool has_layer(int64_t number) const {
    return number < static_cast<int64_t>(layers.size()) && layers[static_cast<size_t>(number)];
  }
  int64_t count() const {
    int64_t sum = 0;
    for (const bool each : layers) sum += each ? 1 : 0;
    return sum;
  }
  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
  int64_t shared_by() const { return value_heads / key_heads; }  // value heads of a key head
};

}  // namespace concord
