// The parameters of a vision tower. Pure; threads: any.
#pragma once

#include <string>

#include "core/models/plan_list.h"

namespace concord {

inline constexpr const char* kTower = "model.visual.";  // how their names begin

// The names of a tower's modules, by its kind.
struct TowerNames {
  std::string merger_norm;
  std::string merger_in, merger_out;
  std::string mlp_in, mlp_out;  // not used by blocks with gate_proj, up_proj and down_proj
};
TowerNames tower_names(TowerKind kind);

// Appends the parameters, as in transformers, none of them split:
//   model.visual.patch_embed.proj.{weight,bias}       [hidden, channels, frames, patch, patch]
//   model.visual.pos_embed.weight                     [positions, hidden]
//   model.visual.blocks.N.{norm1,norm2}.{weight,bias}
//   model.visual.blocks.N.attn.{qkv,proj}.{weight,bias}
//   model.visual.blocks.N.mlp.MODULE.{weight,bias}
//   model.visual.merger.MODULE.{weight,bias}          and deepstack_merger_list.J
void plan_tower(PlanList& list);

}  // namespace concord
