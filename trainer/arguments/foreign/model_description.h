// A model that is described by arguments of Megatron's: num_layers, hidden_size, swiglu, ... If the run has a model,
// each of them must agree with its config.json; otherwise they make one, with Megatron's defaults for the others.
// Threads: plain values.
#pragma once

#include <map>
#include <string>

#include "core/models/config.h"
#include "trainer/arguments/problems.h"
#include "trainer/arguments/training_arguments.h"
#include "trainer/arguments/yaml.h"

namespace concord {

class ModelDescription {
 public:
  // |where| precedes errors about it. The last of several values counts.
  void add(const std::string& name, const ArgumentValue& value, const std::string& where);

  // Compares with the config.json of |arguments|, or sets model_config to the text of one. Adds disagreements to
  // |problems|. A config.json that cannot be read is not reported here. Waits: reads that file.
  void apply(TrainingArguments* arguments, Problems* problems) const;

 private:
  struct Given {
    std::string text;
    std::string where;
  };
  void compare(const ModelConfig& config, const std::string& source, Problems* problems) const;

  std::map<std::string, Given> given_;
};

// Returns the text of a config.json of the family that fits |description| best: names of Megatron's and their values.
// The vocabulary is that of |tokenizer|, a tokenizer.json or its folder, if it is not described. Throws
// ConfigError if a size is missing or no number. Waits: reads the tokenizer.
std::string config_of_description(const std::map<std::string, std::string>& description, const std::string& tokenizer);

}  // namespace concord
