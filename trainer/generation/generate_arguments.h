// Options of `concord generate`. Needs no libtorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/mesh/initialize_args.h"
#include "trainer/generation/sampling.h"

namespace concord {

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  int64_t batch_size = 8;  // prompts at a time
  SamplingOptions sampling = {};
};

struct GenerateArguments {
  std::string model;                     // an HF folder, or a checkpoint
  std::string adapter;                   // a folder with an adapter for it; empty: none
  std::string prompt;                    // one of the two
  std::string prompts;                   // a .txt or .jsonl file
  std::vector<std::string> images = {};  // files of |prompt|
  std::vector<std::string> videos = {};  // after the images
  std::string tokenizer;                 // empty: the model's
  std::string dtype;                     // empty: the config's
  std::string layout;                    // pipeline_model_parallel_layout
  GenerateOptions options;
  InitializeArgs sizes;
  bool chat = false;
  std::string chat_template = {};  // a Jinja file; empty: the tokenizer's own
  bool json = false;
};

// Whether the prompts are messages from standard input.
inline bool is_conversation(const GenerateArguments& given) {
  return given.chat && !given.json && given.prompt.empty() && given.prompts.empty();
}

}  // namespace concord
