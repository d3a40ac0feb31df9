// The platforms of the ranks of a job, as a value: which groups stay inside a platform and use its collectives, and
// which cross platforms and use the bridge (platform/bridge/bridge.h). Pure functions. Threads: any.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/mesh/rank_layout.h"

namespace concord {

class PlatformMap {
 public:
  PlatformMap() : names_(1), part_(std::numeric_limits<int64_t>::max()) {}  // one platform, without a name
  // |names| are those of equal consecutive parts of the ranks, from rank 0: {"cuda", "ascend"} for the two halves.
  // Throws ConfigError if their number does not divide |world|.
  PlatformMap(std::vector<std::string> names, int64_t world);
  // Parses "cuda,ascend". One name, or none, is that of all ranks.
  static PlatformMap parse(const std::string& list, int64_t world);

  const std::string& of(int64_t rank) const;
  bool is_mixed() const;
  std::string to_string() const;               // "4 x cuda, 4 x ascend"
  bool crosses(const RankGroup& group) const;  // its ranks are on different platforms
  // Number of ranks from |first| up to |rank| on the platform of |rank|, without itself: the index of its device, if
  // |first| is the first rank of its machine.
  int64_t index_among(int64_t first, int64_t rank) const;

 private:
  std::vector<std::string> names_;
  int64_t part_;  // ranks per name
};

// Throws ConfigError if a group of |layout| crosses platforms that must not: tensor, context and expert parallelism
// communicate in every layer.
void check_platforms(const RankLayout& layout, const PlatformMap& platforms);

// Returns a line per kind of group with several ranks: whether its groups stay inside platforms, or one that crosses.
std::string describe_platforms(const RankLayout& layout, const PlatformMap& platforms);

}  // namespace concord
