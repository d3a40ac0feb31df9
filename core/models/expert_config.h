// The experts of a model, from its config.json. Needs no libtorch. Pure values; threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace concord {

// How files have the experts of a layer.
enum class ExpertFiles {
  per_expert,     // three tensors per expert: gate, up and down
  outputs_first,  // two tensors of all experts: [experts, 2 out, in], the gates before the ups, and [experts, out, in]
  inputs_first,   // like outputs_first, but [experts, in, 2 out] and [experts, in, out]
  with_biases,    // like inputs_first, but gates and ups alternate; both tensors have biases, named with _bias
};

struct ExpertConfig {
  int64_t num_experts = 0;  // experts per sparse layer; 0: the model has none
  int64_t num_experts_per_tok = 0;
  int64_t intermediate_size = 0;         // intermediate size of one expert
  int64_t shared_intermediate_size = 0;  // intermediate size of the shared expert; 0: none
  bool shared_gate = false;              // its output is multiplied by sigmoid(x w)
  bool norm_topk_prob = false;           // a token's weights are divided by their sum
  bool sigmoid_scores = false;           // sigmoid per expert; else softmax over all experts
  double routed_scaling_factor = 1;      // factor of a token's weights
  int64_t n_group = 1;                   // equal parts of the experts, of which a token chooses topk_group first
  int64_t topk_group = 1;
  bool softmax_after_topk = false;  // over the logits of a token's choices instead of over all experts
  bool fp32_router = false;         // logits are computed in fp32 in 16-bit models
  bool wide_weights = false;        // they stay in fp32 in 16-bit models, else they are rounded to the model's type
  std::vector<bool> sparse;         // for each layer: whether it has experts; empty if none has
  // The loss that balances experts, over all layers together; only where output_router_logits is true or an argument
  // asks for it, as in transformers.
  bool output_router_logits = false;
  double router_aux_loss_coef = 0.001;
  // Names of a layer's tensors in files, after "model.layers.N."; {} is the index of the expert.
  std::string router = "mlp.gate.weight";
  std::string router_bias = "";  // bias of the logits, a trained weight; empty: none
  std::string bias = "";         // added to the scores for the choice only, fp32, not trained by gradients; empty: none
  bool bias_is_row = false;      // in files |bias| is [1, experts] instead of [experts]
  std::string shared = "mlp.shared_expert.";  // what those of the shared expert begin with
  std::string gate = "mlp.experts.{}.gate_proj.weight";
  std::string up = "mlp.experts.{}.up_proj.weight";
  std::string down = "mlp.experts.{}.down_proj.weight";

  ExpertFiles files = ExpertFiles::per_expert;
  std::string gate_up = "mlp.experts.gate_up_proj";  // tensor of all experts; not used with per_expert

  bool has_biases() const { return files == ExpertFiles::with_biases; }
  bool are_inputs_first() const { return files == ExpertFiles::inputs_first || has_biases(); }

  // MTP layers, which come after the last, have experts if any layer has.
  bool has_layer(int64_t number) const {
    return number < static_cast<int64_t>(sparse.size()) ? sparse[static_cast<size_t>(number)] : layers() > 0;
  }
  int64_t layers() const {
    int64_t count = 0;
    for (const bool each : sparse) count += each ? 1 : 0;
    return count;
  }
};

// |name| with the number of an expert in place of {}.
inline std::string of_expert(const std::string& name, int64_t expert) {
  const size_t place = name.find("{}");
  return place == std::string::npos ? name : std::string(name).replace(place, 2, std::to_string(expert));
}

}  // namespace concord
