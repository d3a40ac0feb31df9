// Options of `concord probe`. Needs no libtorch.
#pragma once

#include <string>

#include "core/mesh/initialize_args.h"
#include "core/models/model_options.h"

namespace concord {

struct ProbeOptions {
  bool grads = false;        // gradients of the mean loss
  bool activations = false;  // outputs of the parts
  bool weights = false;
};

struct ProbeArguments {
  std::string model;         // an HF folder; or
  std::string model_config;  // a config.json, for fresh weights
  std::string adapter;       // a folder with an adapter for the model; empty: none
  std::string batch;         // a safetensors file; may be empty with options.weights
  std::string out;
  std::string dtype;   // empty: the config's
  std::string layout;  // pipeline_model_parallel_layout
  InitializeArgs sizes;
  ModelOptions model_options;
  ProbeOptions options;
  bool overwrite = false;  // |out| may be replaced
  bool json = false;
};

}  // namespace concord
