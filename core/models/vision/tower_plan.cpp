#include "core/models/vision/tower_plan.h"

#include <fmt/core.h>

namespace concord {
namespace {

class TowerPlanner {
 public:
  explicit TowerPlanner(PlanList& list)
      : list_(list), vision_(list.config().vision), names_(tower_names(vision_.kind)) {}

  void plan() {
    const int64_t hidden = vision_.hidden_size, patch = vision_.patch_size;
    const std::string embed = fmt::format("{}patch_embed.proj", kTower);
    list_.add(embed + ".weight", {{hidden}, {vision_.in_channels}, {vision_.temporal_patch_size}, {patch}, {patch}},
              normal());
    if (vision_.kind == TowerKind::qwen3) {
      list_.add(embed + ".bias", {{hidden}}, constant_init(0));
      list_.add(fmt::format("{}pos_embed.weight", kTower), {{vision_.num_position_embeddings}, {hidden}}, normal());
    }
    for (int64_t i = 0; i < vision_.depth; ++i) block(fmt::format("{}blocks.{}.", kTower, i));
    merger(fmt::format("{}merger.", kTower), hidden);
    for (size_t i = 0; i < vision_.deepstack.size(); ++i) {
      merger(fmt::format("{}deepstack_merger_list.{}.", kTower, i), vision_.merged_size());
    }
  }

 private:
  WeightInit normal() const { return normal_init(list_.config().initializer_range); }

  void norm(const std::string& name, int64_t size) {
    list_.add(name + ".weight", {{size}}, constant_init(1));
    if (vision_.kind != TowerKind::qwen2_5) list_.add(name + ".bias", {{size}}, constant_init(0));
  }

  void linear(const std::string& name, int64_t outputs, int64_t inputs) {
    list_.add(name + ".weight", {{outputs}, {inputs}}, normal()).linear = true;
    list_.add(name + ".bias", {{outputs}}, constant_init(0));
  }

  void block(const std::string& prefix) {
    const int64_t hidden = vision_.hidden_size, inner = vision_.intermediate_size;
    norm(prefix + "norm1", hidden);
    linear(prefix + "attn.qkv", 3 * hidden, hidden);
    linear(prefix + "attn.proj", hidden, hidden);
    norm(prefix + "norm2", hidden);
    if (vision_.kind == TowerKind::qwen2_5) {
      linear(prefix + "mlp.gate_proj", inner, hidden);
      linear(prefix + "mlp.up_proj", inner, hidden);
      linear(prefix + "mlp.down_proj", hidden, inner);
      return;
    }
    linear(prefix + names_.mlp_in, inner, hidden);
    linear(prefix + names_.mlp_out, hidden, inner);
  }

  void merger(const std::string& prefix, int64_t normed) {
    const int64_t merged = vision_.merged_size();
    norm(prefix + names_.merger_norm, normed);
    linear(prefix + names_.merger_in, merged, merged);
    linear(prefix + names_.merger_out, list_.config().hidden_size, merged);
  }

  PlanList& list_;
  const VisionConfig& vision_;
  TowerNames names_;
};

}  // namespace

TowerNames tower_names(TowerKind kind) {
  if (kind == TowerKind::qwen3) return {"norm", "linear_fc1", "linear_fc2", "mlp.linear_fc1", "mlp.linear_fc2"};
  return {"ln_q", "mlp.0", "mlp.2", "mlp.fc1", "mlp.fc2"};
}

void plan_tower(PlanList& list) { TowerPlanner(list).plan(); }

}  // namespace concord
