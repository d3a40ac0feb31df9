// Fields of a model's or an adapter's configuration by name, to compare two of them. A new field of one of these
// structs is listed in config_fields.cpp, as compared or as one that may differ; config_fields_test.cpp counts them.
// Pure values; threads: any.
#pragma once

#include <string>
#include <vector>

#include "core/models/adapters/adapter_config.h"
#include "core/models/config.h"

namespace concord {

struct ConfigField {
  std::string name;
  std::string text;         // its value; empty: absent
  bool may_differ = false;  // between a checkpoint and the run that resumes from it
};
using ConfigFields = std::vector<ConfigField>;

// Fields of |config| and of the structs in it. Fields that determine what the model computes must be equal for weights
// to fit; how new weights are initialized, names in files and the type of the saved weights may differ.
ConfigFields config_fields(const ModelConfig& config);
// Fields of one struct each.
ConfigFields config_fields(const RopeSettings& rope);
ConfigFields config_fields(const ExpertConfig& experts);
ConfigFields config_fields(const LatentConfig& latent);
ConfigFields config_fields(const DeltaConfig& delta);
ConfigFields config_fields(const VisionConfig& vision);
ConfigFields config_fields(const AdapterConfig& adapter);

}  // namespace concord
