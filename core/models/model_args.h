// Arguments of a model besides its config.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/models/adapters/adapter_config.h"
#include "core/models/model_options.h"
#include "core/schedule/layer_layout.h"

namespace concord {

// How a model is run. Names are those of Megatron and ROLL, if they have one.
struct ModelArgs {
  // Type of parameters and activations: Float, BFloat16, Half or Double. None: that of the config.
  std::optional<c10::ScalarType> dtype = {};
  ModelOptions options = {};
  int64_t seed = 42;  // seed of the initialisation, positive
  // LoRA adapter that is trained instead of the model's own weights; its target names come from with_targets().
  std::optional<AdapterConfig> adapter = {};
  // The vision tower of a model with images is computed and trained (MicroBatch::pixel_values). Otherwise the model is
  // its text part, and saves have the tower's tensors as they were read.
  bool vision_tower = false;
  bool is_reward_model = false;     // ModelConfig::is_reward_model, also if the folder holds a language model
  std::string adapter_folder = {};  // from_pretrained reads the adapter from here; empty: it is initialised
  // Adapters that from_pretrained merges into the weights first, in this order.
  std::vector<std::string> merged_adapters = {};
  int64_t quantization_bit =
      0;  // 4: from_pretrained holds frozen weights of linear layers in nf4 (core/ops/precision/nf4.h)
  bool share_reads = false;  // from_pretrained reads each byte once per data-parallel group (HfLoadOptions)
  // The pp * vpp stages of the whole pipeline, in the order of the model; empty: layers are distributed evenly.
  std::vector<StageLayers> stages = {};
  Placement placement = Placement::loop;  // which stages a rank has
};

}  // namespace concord
