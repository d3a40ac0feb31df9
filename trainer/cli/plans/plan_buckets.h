// `concord plan --buckets`: the positions of a rank's parameters and gradients, what is reduced together, and the
// memory it takes. Pure: no device, no processes.
#pragma once

#include <optional>
#include <string>

#include "core/data_parallel/bucket_plan.h"
#include "core/mesh/rank_layout.h"
#include "core/optim/optimizer_options.h"

namespace concord {

struct BucketArguments {
  bool wanted = false;
  std::string model_config = {};  // a config.json, or a folder with one
  std::string parameters = {};    // a JSON list of {"name", "shape" or "elements", "dtype", "expert"}
  // Type of the parameters; empty: that of config.json, or bf16 for parameters of a list without one.
  std::string dtype = {};
  bool use_distributed_optimizer = false;
  bool sequence_parallel = false;
  bool grads_in_parameter_type = false;
  int64_t ddp_bucket_size = 0;
  OptimizerOptions optimizer = {};  // whose state is counted; that of muon as if it were AdamW's
};

// A table, or one JSON document: a list with the plan of each chunk of |rank|. Throws ConfigError, with the file and
// what is allowed, for invalid files, and unless exactly one of them is given.
std::string buckets_text(const BucketArguments& arguments, const RankLayout& layout, int64_t rank, bool json);

// The parameters that |text|, the content of |file|, lists.
std::vector<PlannedParameter> parse_parameters(const std::string& text, const std::string& file,
                                               const std::string& dtype);

}  // namespace concord
