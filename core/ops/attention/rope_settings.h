// A model's rope settings; core/ops/attention/rope_angles.h computes angles from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/enum_names.h"

namespace concord {

enum class RopeType { plain, dynamic, linear, llama3, yarn };
template <>
inline constexpr std::string_view kEnumNames<RopeType>[] = {"default", "dynamic", "linear", "llama3", "yarn"};

// A model's rope settings, named as in its config.json ("rope_parameters", or "rope_scaling" of older files). Values
// that a kind does not use are ignored.
struct RopeSettings {
  RopeType rope_type = RopeType::plain;
  double rope_theta = 10000;
  int64_t head_dim = 0;
  double partial_rotary_factor = 1;
  int64_t max_position_embeddings = 0;           // dynamic; yarn without a factor
  int64_t original_max_position_embeddings = 0;  // llama3, yarn
  std::optional<double> factor = {};             // linear, dynamic, llama3, yarn
  std::optional<double> low_freq_factor = {};    // llama3
  std::optional<double> high_freq_factor = {};   // llama3
  std::optional<double> attention_factor = {};   // yarn
  std::optional<double> mscale = {};             // yarn
  std::optional<double> mscale_all_dim = {};     // yarn
  double beta_fast = 32;                         // yarn
  double beta_slow = 1;                          // yarn
  bool truncate = true;                          // yarn
  // Positions on three axes (time, row, column): the number of frequencies of each; empty: one axis.
  std::vector<int64_t> mrope_section = {};
  bool mrope_interleaved = false;  // the axes take turns, instead of one range of frequencies each
};

}  // namespace concord
