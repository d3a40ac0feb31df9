// Private parts of ModelChunk, for its sources only.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/models/layers/block.h"
#include "core/models/layers/layer_context.h"
#include "core/models/layers/mtp_layer.h"
#include "core/models/layers/output_layer.h"
#include "core/models/model_chunk.h"
#include "core/models/precision/fp8_layers.h"
#include "core/models/vision/vision_tower.h"
#include "core/parallel/offload/activation_offload.h"

namespace concord {

// The layers that forward and decode run. They live as long as the chunk, at one address: the backward of recomputed
// layers refers to them.
struct ModelChunk::Parts {
  std::optional<Fp8Layers> fp8;
  LayerContext layers;
  std::optional<VisionTower> tower;  // on the first stage, if it is in use
  std::vector<Block> blocks;
  std::vector<MtpLayer> mtp;  // on the last stage
  std::vector<LayerRun> runs;
  std::optional<ActivationOffload> offload;  // of the inputs of |runs|
  Parameter* embedding = nullptr;
  Parameter* norm = nullptr;
  Parameter* score = nullptr;         // output layer of a reward model
  std::optional<OutputLayer> output;  // output layer of other models
  LayerAngles angles;                 // cached for sequences that are not packed
  int64_t tokens_of_angles = 0;       // sequence length of |angles|; 0: none cached
};

// Returns the rope angles of |positions| in sequences of |length| tokens, for a model that computes in |dtype|.
LayerAngles layer_angles(const ModelConfig& config, int64_t length, const at::Tensor& positions, c10::ScalarType dtype);

// Returns |x_pbh| with |features| instead of the embeddings of image tokens.
at::Tensor with_features(const at::Tensor& x_pbh, const VisionFeatures& features, const LayerInputs& inputs);

// Sets a flag for its own lifetime.
class ScopedFlag {
 public:
  ScopedFlag(bool& flag, bool value) : flag_(flag), before_(std::exchange(flag, value)) {}
  ~ScopedFlag() { flag_ = before_; }
  ScopedFlag(const ScopedFlag&) = delete;
  ScopedFlag& operator=(const ScopedFlag&) = delete;

 private:
  bool& flag_;
  bool before_;
};

}  // namespace concord
