// The sharding of one parameter over the ranks of a job: the only description of it. Initialisation, import and export
// of HF weights, gradient reduction, the norm, the optimizer's shards and checkpoints use it.
//
// A parameter is one tensor on a rank. Globally it represents one or more tensors with their own names, as in HF files:
//   a plain weight      one tensor
//   fused pieces        q, k, v or gate, up concatenated along |fused_dim|; a split there splits each piece separately.
//                       If they are |joined| they are one tensor globally too; consecutive pieces of the same name are
//                       consecutive parts of one tensor
//   stacked             dims[0] is an index of tensors: expert 7 of a stack is the tensor with "7" for "{}" in its name
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
    std::optional<ShardAxis> cut = {};  // axis that splits the dim into equal parts
    int64_t padded = 0;                 // size that is split, if larger than |size|: the padded vocabulary; 0: |size|
  };
  struct Piece {
    std::string name;  // name of the global tensor
    int64_t size;      // along fused_dim
  };

  std::string name = {};  // name of the parameter, the same for every layout
  std::vector<Dim> dims = {};
  size_t fused_dim = 0;
  std::vector<Piece> pieces = {};  // empty: one tensor, called |name|
  bool joined = false;             // the pieces are consecutive parts of one global tensor called |name|
  bool stacked = false;
  std::vector<GroupKind> replicated_over = {};  // groups whose ranks hold the same elements
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

// The ranks that hold the same elements of a parameter, and the index of a rank among them.
struct Replicas {
  int64_t count = 1;
  int64_t index = 0;
  bool operator==(const Replicas&) const = default;
};
// Counts only the replicas in |within|, if given; |rank| must be in it.
Replicas replicas_of(const ShardSpec& spec, const RankLayout& layout, int64_t rank,
                     const std::optional<RankRange>& within = {});

// Returns the shape of the rank's tensor, including padding. Throws ConfigError, with the parameter, the numbers and
// what to change, for a size that its axis does not divide, pieces that do not add up, padding of a fused dimension and
// similar errors.
std::vector<int64_t> local_shape(const ShardSpec& spec, const ShardPlace& place);

// A part of the rank's tensor that is contiguous there and regular in its global tensor: element i has the global index
// offset + (i / run_length) * run_stride + i % run_length.
struct ShardRun {
  std::string tensor;
  int64_t local = 0;  // first element in the rank's tensor
  int64_t count = 0;
  int64_t offset = 0;  // global index of its first element
  int64_t run_length = 0;
  int64_t run_stride = 0;
  bool operator==(const ShardRun&) const = default;
};

// Returns the rank's tensor, except its padding, as few runs. Throws like local_shape().
std::vector<ShardRun> shard_runs(const ShardSpec& spec, const ShardPlace& place);

// Returns the part of |runs| in [begin, end) of the rank's tensor; |local| is then relative to |begin|.
std::vector<ShardRun> cut_runs(const std::vector<ShardRun>& runs, int64_t begin, int64_t end);

}  // namespace concord
