// Which layers of the model each stage has: distributed evenly as in Megatron, or as the user specifies. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/schedule/schedule.h"

namespace concord {

// What one stage has, in the order in which it runs.
struct StageLayers {
  bool embedding = false;
  int64_t first_layer =
      0;  // number in the model of the stage's first transformer layer; where it has none, the next one's
  int64_t layers = 0;
  int64_t mtp_layers = 0;  // of multi-token prediction
  bool loss = false;       // the final norm, the output layer and the loss
  bool operator==(const StageLayers&) const = default;
};

// What a user says about it; the names are Megatron's.
struct LayerAssignment {
  int64_t num_layers = 1;
  int64_t pp = 1;
  int64_t vpp = 1;
  bool account_for_embedding_in_pipeline_split = false;  // the embedding counts as a layer
  bool account_for_loss_in_pipeline_split = false;       // the loss too
  std::optional<int64_t> num_layers_in_first_pipeline_stage =
      std::nullopt;  // on the first rank; the others share the rest evenly
  std::optional<int64_t> num_layers_in_last_pipeline_stage = std::nullopt;  // on the last
  Placement placement = Placement::loop;
  bool operator==(const LayerAssignment&) const = default;
};

inline constexpr int64_t kMaxLayers = int64_t{1} << 20;

// The pp * vpp stages in the order of the model. Throws ConfigError with the numbers if layers do not divide.
std::vector<StageLayers> assign_layers(const LayerAssignment& deal);

// pipeline_model_parallel_layout: E embedding, t transformer layer, m multi-token prediction, L loss; '|' between
// stages, x*n and (..)*n repeat, commas and spaces mean nothing. "E,t*3|t*4,L" is two stages, "E|(t|)*4,L" six. There
// have to be a multiple of |pp| stages and |num_layers| t's. Throws ConfigError with the numbers.
std::vector<StageLayers> parse_layer_layout(std::string_view layout, int64_t num_layers, int64_t pp,
                                            int64_t mtp_layers = 0);

std::string to_string(const std::vector<StageLayers>& stages);  // "E,t*3|t*4,L", which parses back

}  // namespace concord
