// The metadata files of a saved folder: the index, the model's config, the tokenizer, and others.
#pragma once

#include <string>

#include "core/checkpoint/hf_weights.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/write/save_plan.h"

namespace concord {

// Writes them to |folder|, durably. If |manifest| is given, adds them to it and writes it as the last file. Throws
// std::runtime_error for file system errors.
void write_metadata_files(const std::string& folder, const SavePlan& plan, const HfSaveOptions& options,
                          Manifest* manifest);

}  // namespace concord
