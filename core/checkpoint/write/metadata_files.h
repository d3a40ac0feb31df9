// What a saved folder has besides tensors: the index, the model's config, the tokenizer, and more.
#pragma once

#include <string>

#include "core/checkpoint/hf_weights.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/write/save_plan.h"

namespace concord {

// Writes them into |folder|, durably. With |manifest| it adds them to it and writes it as the last file. Throws
// std::runtime_error for what the file system says.
void write_metadata_files(const std::string& folder, const SavePlan& plan, const HfSaveOptions& options,
                          Manifest* manifest);

}  // namespace concord
