// The keys and values of the tokens that a chunk's layers have seen, for generating one token after another.
//
// A row is a sequence. The first step has all tokens of the prompts, padded at the end to the longest; every later step
// one token per row. The lengths of the rows differ and exist on the device only, so a step never waits for it. Padding
// of the first step is overwritten by the row's next tokens, and no query attends to it before.
//
// Steps of one token all work on the same tensors: lengths, keys, values and states are changed in place, never
// replaced, so that a step can be recorded and replayed (core/torch/graphed_callable.h).
//
// Memory: 2 x layers x rows x capacity x kv_heads x head_dim elements, allocated once, in the first step. Layers with a
// sliding window keep all tokens too; layers with a gated delta net have a state of fixed size instead. Threads: the
// computing thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/models/layers/layer_angles.h"
#include "core/models/vision/media_positions.h"
#include "core/ops/attention/attention.h"

namespace concord {

// The new tokens of all rows, on the device.
struct NewTokens {
  at::Tensor ids;     // int64 [B, S]; S > 1 in the first step only
  at::Tensor counts;  // int64 [B]: number of the row's tokens among the S; the others are padding. 0 after the first
                      // step: the row has ended, and its logits are meaningless
  // In the first step the patches of the prompts' images, as in MicroBatch; undefined: there are none.
  at::Tensor pixel_values = {};
  MediaList media = {};
};

class KvCache {
 public:
  struct Sizes {
    int64_t first_layer = 0;  // of the model
    int64_t layers = 0;
    int64_t rows = 0;
    int64_t capacity = 0;  // tokens of a row
    int64_t kv_heads = 0;  // of this rank
    int64_t head_dim = 0;
  };
  // |angles| [capacity, r]: rope's angles of all positions. |options|: type and device of the keys.
  KvCache(const Sizes& sizes, LayerAngles angles, const at::TensorOptions& options);

  const Sizes& sizes() const { return sizes_; }
  int64_t longest() const { return longest_; }  // tokens of the longest row so far, with its padding in the first step

  // Makes all later steps of one token do the same work, whatever the lengths: attention reads the whole capacity.
  void make_steps_equal() { has_equal_steps_ = true; }

  // A step is begin(), each layer's attend(), then end(). Throws Error if the tokens exceed the capacity. The caller,
  // which knows the lengths, must ensure that rows which still receive tokens are not full.
  void begin(const NewTokens& tokens);
  // Call in the first step, for prompts whose tokens are not placed one after the other: |angles| [S, B, r] are theirs,
  // and the next token of a row has the position lengths + |shifts| [B].
  void place_prompts(LayerAngles angles, const at::Tensor& shifts);
  // Returns the angles of the new tokens: [S, 1, r], or [1, B, r] if rows are at different positions.
  LayerAngles angles() const;
  // Appends |k| and |v| [B, S, kv_heads, n] to the cache of layer |number| of the model, and returns the attention of
  // |q| [B, S, heads, n] to all its tokens.
  at::Tensor attend(int64_t number, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const AttentionOptions& options);
  void end();

  // State of a layer without keys (gated delta net); undefined at first.
  struct LayerState {
    at::Tensor inputs;  // [B, K - 1, channels]: the last inputs of its convolution
    at::Tensor state;   // [B, heads, n, m]
  };
  const LayerState& state_of(int64_t number) const { return states_[index_of(number)]; }
  void keep_inputs(int64_t number, const at::Tensor& inputs) { keep(inputs, &states_[index_of(number)].inputs); }
  void keep_state(int64_t number, const at::Tensor& state) { keep(state, &states_[index_of(number)].state); }
  at::Tensor is_real(int64_t tokens) const;  // bool [B, tokens]: tokens of this step that are not padding
  // The last |count| of |x| [B, count + tokens of this step, channels] in each row, without its padding.
  at::Tensor last_of_rows(const at::Tensor& x, int64_t count) const;

 private:
  size_t index_of(int64_t number) const { return static_cast<size_t>(number - sizes_.first_layer); }
  static void keep(const at::Tensor& value, at::Tensor* place);

  Sizes sizes_;
  LayerAngles angles_;
  std::optional<LayerAngles> prompt_angles_;  // none: the first rows of |angles_|
  at::Tensor shifts_;                         // int64 [rows]; undefined: 0
  at::TensorOptions options_;
  std::vector<at::Tensor> keys_, values_;  // one per layer: [rows, capacity, kv_heads, head_dim]
  std::vector<LayerState> states_;
  at::Tensor row_;      // int64 [rows]: 0, 1, ...
  at::Tensor lengths_;  // int64 [rows]: tokens before this step
  at::Tensor counts_;   // int64 [rows]: tokens of this step
  at::Tensor seen_;     // int64 [rows]: tokens including this step
  at::Tensor place_;    // int64 [rows]: where the one token of this step goes
  int64_t longest_ = 0;
  int64_t step_ = 0;  // tokens of this step
  bool has_equal_steps_ = false;
};

}  // namespace concord
