// The vision tower of a model with images: patches to features, which replace the embeddings of image tokens. One tower
// for all of Qwen's models with images (vision_config.h); each rank computes all of it.
//
// Patches of all images and videos are one sequence [P, ...]; a patch attends to those of its frame, or of its window.
// Parameters are those of a ModelChunk. Threads: like ModelChunk.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/models/layers/layer_context.h"
#include "core/models/vision/media_grid.h"
#include "core/models/vision/tower_plan.h"

namespace concord {

// [tokens, hidden size of the text], merged patches.
struct VisionFeatures {
  at::Tensor tokens;                       // embeddings of the image tokens
  std::vector<at::Tensor> deepstack = {};  // added to the output of the first text layers, one each
};

class VisionTower {
 public:
  // |context| has to outlive the tower and every backward.
  explicit VisionTower(const LayerContext& context);

  // |pixels| [P, channels * frames * patch * patch], with rows in the order of transformers' image processors
  // (patch_layout.h). Throws ConfigError, with the sizes, if they do not match |grids|.
  VisionFeatures forward(const at::Tensor& pixels, const MediaGrids& grids) const;

 private:
  struct Norm {
    const Parameter *weight, *bias;
  };
  struct Linear {
    const Parameter *weight, *bias;
  };
  struct TowerBlock {
    Norm norm1, norm2;
    Linear qkv, proj;
    Linear in, out;  // of the MLP
    Linear up;       // TowerKind::qwen2_5 only, whose gate is |in|
    bool windowed;
  };
  struct Merger {
    Norm norm;
    Linear in, out;
  };
  struct Layout;

  Norm find_norm(const std::string& name) const;
  Linear find_linear(const std::string& name) const;
  Merger find_merger(const std::string& prefix) const;
  at::Tensor apply(const Norm& norm, const at::Tensor& x) const;
  static at::Tensor apply(const Linear& linear, const at::Tensor& x);
  at::Tensor merge(const Merger& merger, const at::Tensor& x_ph) const;
  at::Tensor mlp(const TowerBlock& block, const at::Tensor& x_ph) const;
  at::Tensor run(const TowerBlock& block, const at::Tensor& x_ph, const Layout& layout) const;
  at::Tensor embed(const at::Tensor& pixels, const MediaGrids& grids) const;
  Layout layout_of(const MediaGrids& grids, at::Device device) const;
  void check(const at::Tensor& pixels, const MediaGrids& grids) const;

  const LayerContext& context_;
  const VisionConfig& vision_;
  Linear patch_embed_;
  const Parameter* positions_;  // null: none are learned
  std::vector<TowerBlock> blocks_;
  Merger merger_;
  std::vector<Merger> deepstack_;
};

}  // namespace concord
