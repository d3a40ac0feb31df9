// Models of a run that are given by their name on the Hugging Face hub. Needs no libtorch.
#pragma once

#include <string>
#include <vector>

#include "trainer/arguments/training_arguments.h"

namespace concord {

// Replaces such names in |arguments| (model, model_config, ref_model, tokenizer, adapter_name_or_path) by the folders
// in HF's cache (core/base/files/hub_cache.h), and adds a line for each to |notes|. Throws ConfigError for all names
// that it lacks, with the commands that download them.
void use_cached_models(TrainingArguments* arguments, std::vector<std::string>* notes);

}  // namespace concord
