// The assignment of the model's layers to stages: even as in Megatron, or specified by the user. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/schedule/schedule.h"

namespace concord {

// The layers of one stage, in the order in which they run.
struct StageLayers {
  bool embedding = false;
  int64_t first_layer =
      0;  // index in the model of the stage's first transformer layer, or of the next stage's if it has none
  int64_t layers = 0;
  int64_t mtp_layers = 0;  // MTP layers
  bool loss = false;       // the final norm, the output layer and the loss
  bool operator==(const StageLayers&) const = default;
};

// The user's settings for the assignment, named as in Megatron.
struct LayerAssignment {
  int64_t num_layers = 1;
  int64_t pp = 1;
  int64_t vpp = 1;
  bool account_for_embedding_in_pipeline_split = false;  // the embedding counts as a layer
  bool account_for_loss_in_pipeline_split = false;       // the loss counts as a layer
  std::optional<int64_t> num_layers_in_first_pipeline_stage =
      std::nullopt;  // on the first rank; the others share the rest evenly
  std::optional<int64_t> num_layers_in_last_pipeline_stage = std::nullopt;  // on the last rank
  Placement placement = Placement::loop;
  bool operator==(const LayerAssignment&) const = default;
};

inline constexpr int64_t kMaxLayers = int64_t{1} << 20;

// Returns the pp * vpp stages in the order of the model. Throws ConfigError with the numbers if the layers do not
// divide evenly.
std::vector<StageLayers> assign_layers(const LayerAssignment& deal);

// Parses pipeline_model_parallel_layout: E embedding, t transformer layer, m MTP layer, L loss; '|' separates stages,
// x*n and (..)*n repeat, commas and spaces are ignored. "E,t*3|t*4,L" is two stages, "E|(t|)*4,L" six. The number of
// stages must be a multiple of |pp|, and there must be |num_layers| t's. Throws ConfigError with the numbers.
std::vector<StageLayers> parse_layer_layout(std::string_view layout, int64_t num_layers, int64_t pp,
                                            int64_t mtp_layers = 0);

std::string to_string(const std::vector<StageLayers>& stages);  // "E,t*3|t*4,L", which parses back

}  // namespace concord
