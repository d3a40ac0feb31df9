// How one parameter is laid out over the ranks of a job: the one description of it. Initialisation uses it now; import
// and export of HF weights, gradient reduction, the norm, the optimizer's shards and checkpoints are to use the same.
//
// A parameter is one tensor on a rank. Globally it represents one or more tensors with their own names, as HF has
// them:
//   a plain weight      one tensor
//   fused pieces        q, k, v or gate, up concatenated along |fused_dim|; a split there splits each piece separately.
//                       Where they are |joined| they are one tensor globally too
//   stacked             dims[0] numbers tensors: expert 7 of a stack is the tensor whose name has "7" in place of "{}"
// Every element of every rank thus has a global address (tensor name, row-major index within that tensor), which does
// not depend on the layout. Pure values; threads: any.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/mesh/machines.h"
#include "core/mesh/rank_layout.h"

namespace concord {

// The axes that split parameters. pp splits the model by names; dp and cp replicate.
enum class ShardAxis { tp, etp, ep };
inline constexpr int kShardAxes = 3;
const char* to_string(ShardAxis axis);

struct ShardSpec {
  struct Dim {
    int64_t size;                       // global, without padding
    std::optional<ShardAxis> cut = {};  // the axis that splits it into equal parts
    int64_t padded = 0;  // the size that is split, where it is more than |size|: the vocabulary. 0: as |size|
  };
  struct Piece {
    std::string name;  // of the global tensor
    int64_t size;      // along fused_dim
  };

  std::string name = {};  // of the parameter, the same under every layout
  std::vector<Dim> dims = {};
  size_t fused_dim = 0;
  std::vector<Piece> pieces = {};  // empty: one tensor, called |name|
  bool joined = false;             // the pieces are parts of one global tensor, called |name|, in this order
  bool stacked = false;
  std::vector<GroupKind> replicated_over = {};  // the groups whose ranks hold the same elements
};

// The coordinates of a rank on the axes that split.
struct ShardPlace {
  struct Axis {
    int64_t count = 1;
    int64_t index = 0;
  };
  std::array<Axis, kShardAxes> axes;
  const Axis& operator[](ShardAxis axis) const { return axes[static_cast<size_t>(axis)]; }
};
ShardPlace shard_place(const RankLayout& layout, int64_t rank);

// The ranks that hold the same elements of a parameter, and which of them a rank is.
struct Replicas {
  int64_t count = 1;
  int64_t index = 0;
  bool operator==(const Replicas&) const = default;
};
// Those in |within| alone, where it is given; |rank| is one of it.
Replicas replicas_of(const ShardSpec& spec, const RankLayout& layout, int64_t rank,
                     const std::optional<RankRange>& within = {});

// The shape of the rank's tensor, padding included. Throws ConfigError, with the parameter, the numbers and what to
// change, for a size that its axis does not divide, pieces that do not add up, padding of a fused dimension and the
// like.
std::vector<int64_t> local_shape(const ShardSpec& spec, const ShardPlace& place);

// A part of the rank's tensor that is contiguous there and regular in its global tensor: element i has the global index
// offset + (i / run_length) * run_stride + i % run_length.
struct ShardRun {
  std::string tensor;
  int64_t local = 0;  // where it begins in the rank's tensor
  int64_t count = 0;
  int64_t offset = 0;  // global index of its first element
  int64_t run_length = 0;
  int64_t run_stride = 0;
  bool operator==(const ShardRun&) const = default;
};

// All of the rank's tensor except its padding, in few parts. Throws as local_shape.
std::vector<ShardRun> shard_runs(const ShardSpec& spec, const ShardPlace& place);

// The part of |runs| that lies in [begin, end) of the rank's tensor; |local| then counts from |begin|.
std::vector<ShardRun> cut_runs(const std::vector<ShardRun>& runs, int64_t begin, int64_t end);

}  // namespace concord
