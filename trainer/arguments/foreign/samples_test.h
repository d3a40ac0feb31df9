// Configurations of other programs, as users write them.
#pragma once

namespace concord {

// The fields of transformers.TrainingArguments, of version 5 and those that 4 had, with the paths that scripts add.
extern const char* const kHuggingFace;
extern const char* const kLlamaFactory;
// As Megatron's YAML is laid out, and the values of its scripts for a model of 1.3 billion parameters.
extern const char* const kMegatron;
extern const char* const kTorchtitan;

}  // namespace concord
