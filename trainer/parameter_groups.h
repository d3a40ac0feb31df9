// Parameters that are frozen, and the multipliers of the learning rate and the weight decay of the others. With an
// adapter the parameters are those that it trains, and only its LoRA matrices can be frozen.
//
// A pattern is a regular expression that is searched in the HF name of a parameter
// (model.layers.0.mlp.down_proj.weight). Queries, keys and values are one parameter here, and so are gate and up: a
// pattern has to match all of them or none. If several patterns match, their multipliers are multiplied. Needs no
// libtorch. Threads: plain values.
#pragma once

#include <cstdint>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "core/models/parameter_plan.h"
#include "trainer/arguments/training_arguments.h"

namespace concord {

// Returns the learning rates of |arguments|' groups by name, for the log, if the base rates are |lr| and
// |decoupled_lr|.
std::vector<std::pair<std::string, double>> group_learning_rates(const GroupArguments& arguments, double lr,
                                                                 double decoupled_lr);

// Returns the pattern of the parameters that finetuning_type freeze does not train in a model of |layers| layers: all
// whose names contain neither a trained module of a trained layer nor an extra module. Throws ConfigError if there are
// fewer layers.
std::string frozen_pattern(const FinetuningArguments& arguments, int64_t layers);

// Returns the patterns of the parts of a model with images that |arguments| do not train. An adapter, which is on the
// language model, trains none of the others anyway. Throws ConfigError if nothing would be left.
std::vector<std::string> frozen_parts(const FinetuningArguments& arguments);

class ParameterGroups {
 public:
  // Throws ConfigError for patterns that are not regular expressions, and values that are not numbers >= 0.
  explicit ParameterGroups(const GroupArguments& arguments);

  bool freezes(const ShardSpec& parameter) const;
  // Returns the number of elements of the parameters that are frozen.
  int64_t frozen_parameters(const ModelConfig& config) const;
  double lr_multiplier(const ShardSpec& parameter) const;
  bool is_decoupled(const ShardSpec& parameter) const;  // its learning rate is based on decoupled_lr
  double weight_decay_multiplier(const ShardSpec& parameter) const;

  // Throws ConfigError for a pattern that matches no parameter of |stages|, or only a part of one, or if a stage of the
  // pipeline has no parameter left to train. |adapter| may be null.
  void check(const ModelConfig& config, const std::vector<StageLayers>& stages, const AdapterModules* adapter) const;

 private:
  struct Pattern {
    std::string text;
    std::regex regex;
    double multiplier = 1;
  };
  static Pattern compiled(const std::string& text, const char* argument);
  static std::vector<Pattern> multipliers(const std::map<std::string, std::string>& texts, const char* argument);
  static double product(const std::vector<Pattern>& patterns, const ShardSpec& parameter);

  std::vector<Pattern> freeze_, lr_, weight_decay_;
  double head_ = 1;      // head_lr_mult
  double loraplus_ = 1;  // loraplus_lr_ratio
  bool decouples_ = false;
};

}  // namespace concord
