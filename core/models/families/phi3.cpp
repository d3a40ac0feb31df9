// Phi 3 and 4: Llama whose files have q, k, v in one tensor, and gate and up in another; one window for all layers.
#include <fmt/core.h>

#include <algorithm>

#include "core/models/families/family.h"

namespace concord {
namespace {

void describe_phi3(const ConfigReader& read, ModelConfig& model) {
  model.fused_qkv = model.fused_gate_up = true;
  model.rms_norm_eps = read.positive("rms_norm_eps", 1e-5);
  if (read.has("sliding_window")) {
    std::fill(model.windows.begin(), model.windows.end(), read.integer("sliding_window", kWindowRange));
  }
  for (const char* key : {"resid_pdrop", "embd_pdrop"}) {
    if (read.not_negative(key, 0) != 0) read.refuse(key, "must be 0; set it to 0 to train without dropout");
  }
  if (model.rope.rope_type != RopeType::plain) {  // transformers reads yarn as longrope here
    read.refuse(
        fmt::format("rope type is {}; a model of type phi3 has default or longrope, and longrope is not "
                    "supported; use one of its folders without rope_scaling (4k tokens)",
                    name_of(model.rope.rope_type)));
  }
}

}  // namespace

extern const Family kPhi3;
const Family kPhi3{"phi3", "Phi3ForCausalLM", 0, 0, &describe_phi3};

}  // namespace concord
