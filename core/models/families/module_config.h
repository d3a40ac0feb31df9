// The config.json of a network that a program provides, such as a torch.nn.Module: model_type concord_module. It lists
// the network's weights, which is all that planning, checkpoints and resuming need; only that program can compute it.
//
//   {"model_type": "concord_module", "architectures": ["Net"], "vocab_size": 256, "num_hidden_layers": 3,
//    "max_position_embeddings": 128, "parameters": {"head.weight": {"shape": [256, 64], "layer": 2}}}
//
// |num_hidden_layers| is the number of parts that run in turn, between which a pipeline may be cut.
#pragma once

#include <string_view>
#include <vector>

#include "core/models/config.h"
#include "core/models/config_reader.h"
#include "core/models/parameter_plan.h"

namespace concord {

inline constexpr std::string_view kModuleType = "concord_module";

// Throws ConfigError as parse_model_config does.
ModelConfig read_module_config(const ConfigReader& read);

// Returns the parameters of |stage|: those of its layers.
std::vector<ParameterPlan> plan_module(const ModelConfig& config, const StageLayers& stage);

}  // namespace concord
