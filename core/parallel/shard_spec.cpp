#include "core/parallel/shard_spec.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "core/base/config_error.h"

namespace concord {
namespace {

// One dimension of a block: its range in the global tensor, and its position in the rank's tensor.
struct Extent {
  int64_t global;       // size of the global tensor
  int64_t begin;        // first index of the block there
  int64_t length;       // number of elements
  int64_t local;        // size of the rank's tensor
  int64_t local_begin;  // start of the block in it
};

struct Part {
  int64_t begin;
  int64_t length;
};

// Returns the part of |size| elements that the rank holds.
Part part_of(const ShardSpec& spec, const std::optional<ShardAxis>& cut, int64_t size, const ShardPlace& place,
             const std::string& what) {
  if (!cut) return {0, size};
  const ShardPlace::Axis& axis = place[*cut];
  if (size % axis.count != 0) {
    throw ConfigError(
        fmt::format("parameter {}: {} of {} cannot be split into {} equal parts; choose a {} size that divides it",
                    spec.name, what, size, axis.count, to_string(*cut)));
  }
  const int64_t length = size / axis.count;
  return {axis.index * length, length};
}

std::string dim_text(size_t dim) { return fmt::format("dimension {}", dim); }

void check_pieces(const ShardSpec& spec) {
  if (spec.pieces.empty()) return;
  const ShardSpec::Dim& dim = spec.dims[spec.fused_dim];
  int64_t sum = 0;
  for (const ShardSpec::Piece& piece : spec.pieces) {
    if (piece.size < 1)
      throw ConfigError(fmt::format("parameter {}: piece {} has size {}", spec.name, piece.name, piece.size));
    sum += piece.size;
  }
  if (sum != dim.size) {
    throw ConfigError(fmt::format("parameter {}: the pieces add up to {}, but {} has {}", spec.name, sum,
                                  dim_text(spec.fused_dim), dim.size));
  }
}

void check(const ShardSpec& spec) {
  if (spec.dims.empty()) throw ConfigError(fmt::format("parameter {} has no dimension", spec.name));
  for (size_t d = 0; d < spec.dims.size(); ++d) {
    const ShardSpec::Dim& dim = spec.dims[d];
    if (dim.size < 1) throw ConfigError(fmt::format("parameter {}: {} has size {}", spec.name, dim_text(d), dim.size));
    if (dim.padded != 0 && dim.padded < dim.size) {
      throw ConfigError(
          fmt::format("parameter {}: {} of {} is padded to {}", spec.name, dim_text(d), dim.size, dim.padded));
    }
    const bool divided = spec.stacked ? d == 0 : false;
    const bool fused = !spec.pieces.empty() && d == spec.fused_dim;
    if (dim.padded > dim.size && (divided || fused)) {
      throw ConfigError(
          fmt::format("parameter {}: {} is fused or stacked and cannot be padded too", spec.name, dim_text(d)));
    }
  }
  if (spec.fused_dim >= spec.dims.size()) {
    throw ConfigError(fmt::format("parameter {}: fused_dim is {} of {}", spec.name, spec.fused_dim, spec.dims.size()));
  }
  if (spec.stacked && (spec.dims.size() < 2 || (!spec.pieces.empty() && spec.fused_dim == 0))) {
    throw ConfigError(fmt::format("parameter {}: a stack needs its own first dimension", spec.name));
  }
  check_pieces(spec);
}

// "experts.{}.weight", 7 -> "experts.7.weight".
std::string numbered(const std::string& name, int64_t number) {
  const size_t place = name.find("{}");
  if (place == std::string::npos)
    throw ConfigError(fmt::format("the name {} of a stack has no {{}} for the index", name));
  return fmt::format("{}{}{}", name.substr(0, place), number, name.substr(place + 2));
}

std::vector<ShardSpec::Piece> pieces_of(const ShardSpec& spec) {
  if (!spec.pieces.empty()) return spec.pieces;
  return {{spec.name, spec.dims[spec.fused_dim].size}};
}

// Returns the size of the global tensor that |piece| is a part of, along the fused dimension.
int64_t tensor_size(const ShardSpec& spec, const ShardSpec::Piece& piece) {
  if (spec.joined) return spec.dims[spec.fused_dim].size;
  int64_t size = 0;
  for (const ShardSpec::Piece& each : spec.pieces) size += each.name == piece.name ? each.size : 0;
  return size;
}

// Returns the size of one dimension on the rank, including padding.
int64_t local_size(const ShardSpec& spec, const ShardPlace& place, size_t d) {
  const ShardSpec::Dim& dim = spec.dims[d];
  if (d != spec.fused_dim || spec.pieces.empty()) {
    return part_of(spec, dim.cut, std::max(dim.size, dim.padded), place, dim_text(d)).length;
  }
  int64_t size = 0;
  for (const auto& piece : spec.pieces)
    size += part_of(spec, dim.cut, piece.size, place, fmt::format("piece {}", piece.name)).length;
  return size;
}

Extent extent_of(const ShardSpec& spec, const ShardPlace& place, size_t d, int64_t local) {
  const ShardSpec::Dim& dim = spec.dims[d];
  const Part part = part_of(spec, dim.cut, std::max(dim.size, dim.padded), place, dim_text(d));
  // Elements beyond |size| are padding.
  const int64_t length = std::clamp<int64_t>(dim.size - part.begin, 0, part.length);
  return {dim.size, part.begin, length, local, 0};
}

// Splits a block into runs and appends them.
class RunCutter {
 public:
  RunCutter(std::vector<Extent> dims, std::string tensor, int64_t local_base)
      : dims_(std::move(dims)), tensor_(std::move(tensor)), local_base_(local_base) {
    global_stride_.assign(dims_.size(), 1);
    local_stride_.assign(dims_.size(), 1);
    for (size_t d = dims_.size(); d-- > 1;) {
      global_stride_[d - 1] = global_stride_[d] * dims_[d].global;
      local_stride_[d - 1] = local_stride_[d] * dims_[d].local;
    }
  }

  void cut(std::vector<ShardRun>& runs) {
    if (std::any_of(dims_.begin(), dims_.end(), [](const Extent& dim) { return dim.length == 0; })) return;
    // The innermost dimension that is not fully covered bounds a run; all inner dimensions are contiguous in both.
    size_t inner = dims_.size() - 1;
    while (inner > 0 && whole(inner)) --inner;
    run_length_ = dims_[inner].length * global_stride_[inner];
    run_stride_ = inner > 0 ? global_stride_[inner - 1] : run_length_;
    // Further out, runs are at one stride, as long as they are adjacent on the rank.
    size_t outer = inner;
    count_ = run_length_;
    while (outer > 0 && dims_[outer].length == dims_[outer].local &&
           (outer == inner || dims_[outer].length == dims_[outer].global)) {
      --outer;
      count_ *= dims_[outer].length;
    }
    walk(runs, 0, outer, 0, 0);
  }

 private:
  bool whole(size_t d) const { return dims_[d].length == dims_[d].global && dims_[d].length == dims_[d].local; }

  // Visits all positions of the dimensions before |outer|; one run covers the dimensions after it.
  void walk(std::vector<ShardRun>& runs, size_t d, size_t outer, int64_t global, int64_t local) const {
    if (d == outer) {
      for (size_t k = d; k < dims_.size(); ++k) {
        global += dims_[k].begin * global_stride_[k];
        local += dims_[k].local_begin * local_stride_[k];
      }
      const bool single = run_length_ >= count_;
      runs.push_back({tensor_, local_base_ + local, count_, global, run_length_, single ? run_length_ : run_stride_});
      return;
    }
    for (int64_t i = 0; i < dims_[d].length; ++i) {
      walk(runs, d + 1, outer, global + (dims_[d].begin + i) * global_stride_[d],
           local + (dims_[d].local_begin + i) * local_stride_[d]);
    }
  }

  std::vector<Extent> dims_;
  std::string tensor_;
  int64_t local_base_;
  std::vector<int64_t> global_stride_;
  std::vector<int64_t> local_stride_;
  int64_t run_length_ = 0;
  int64_t run_stride_ = 0;
  int64_t count_ = 0;
};

// One entry per block: each piece, each tensor of a stack.
void cut_stack(std::vector<Extent> dims, const std::string& name, std::vector<ShardRun>& runs) {
  const Extent stack = dims.front();
  dims.erase(dims.begin());
  int64_t tensor_elements = 1;
  for (const Extent& dim : dims) tensor_elements *= dim.local;
  for (int64_t i = 0; i < stack.length; ++i) {
    RunCutter(dims, numbered(name, stack.begin + i), i * tensor_elements).cut(runs);
  }
}

// Returns |count| elements of |run| starting at element |first|, as a regular part: within one row, or whole rows.
ShardRun piece_of(const ShardRun& run, int64_t first, int64_t count) {
  ShardRun piece = run;
  piece.local = run.local + first;
  piece.count = count;
  piece.offset = run.offset + first / run.run_length * run.run_stride + first % run.run_length;
  if (count <= run.run_length) piece.run_length = piece.run_stride = count;
  return piece;
}

// A rank among all replicas of its elements; |first| identifies the set of replicas.
struct Replica {
  Replicas holders;
  int64_t first;
};

Replica replica_of(const ShardSpec& spec, const RankLayout& layout, int64_t rank) {
  Replica replica{.holders = {}, .first = rank};
  for (const GroupKind kind : spec.replicated_over) {
    const std::optional<RankGroup> group = layout.group_of(kind, rank);
    if (!group) continue;
    replica.holders.index = replica.holders.index * group->size() + group->index_of(rank).value();
    replica.holders.count *= group->size();
    replica.first = layout.group_of(kind, replica.first)->first();
  }
  return replica;
}

}  // namespace

const char* to_string(ShardAxis axis) {
  switch (axis) {
    case ShardAxis::tp: return "tp";
    case ShardAxis::etp: return "etp";
    case ShardAxis::ep: return "ep";
  }
  return "unknown";
}

Replicas replicas_of(const ShardSpec& spec, const RankLayout& layout, int64_t rank,
                     const std::optional<RankRange>& within) {
  const Replica own = replica_of(spec, layout, rank);
  if (!within) return own.holders;
  Replicas there{.count = 0, .index = 0};
  for (int64_t each = within->begin; each < within->end; ++each) {
    const Replica other = replica_of(spec, layout, each);
    if (other.first != own.first) continue;
    ++there.count;
    if (other.holders.index < own.holders.index) ++there.index;
  }
  return there;
}

ShardPlace shard_place(const RankLayout& layout, int64_t rank) {
  const RankCoordinates at = layout.coordinates(rank);
  return {{{{layout.tp(), at.tp}, {layout.etp(), at.etp}, {layout.ep(), at.ep}}}};
}

std::vector<int64_t> local_shape(const ShardSpec& spec, const ShardPlace& place) {
  check(spec);
  std::vector<int64_t> shape;
  for (size_t d = 0; d < spec.dims.size(); ++d) shape.push_back(local_size(spec, place, d));
  return shape;
}

std::vector<ShardRun> shard_runs(const ShardSpec& spec, const ShardPlace& place) {
  const std::vector<int64_t> shape = local_shape(spec, place);
  std::vector<ShardRun> runs;
  int64_t local_begin = 0, tensor_begin = 0;
  std::string before;
  for (const ShardSpec::Piece& piece : pieces_of(spec)) {
    if (!spec.joined && piece.name != std::exchange(before, piece.name)) tensor_begin = 0;
    std::vector<Extent> dims;
    for (size_t d = 0; d < spec.dims.size(); ++d) dims.push_back(extent_of(spec, place, d, shape[d]));
    if (!spec.pieces.empty()) {
      const Part part =
          part_of(spec, spec.dims[spec.fused_dim].cut, piece.size, place, fmt::format("piece {}", piece.name));
      dims[spec.fused_dim] = {tensor_size(spec, piece), tensor_begin + part.begin, part.length, shape[spec.fused_dim],
                              local_begin};
      local_begin += part.length;
      tensor_begin += piece.size;
    }
    const std::string& tensor = spec.joined ? spec.name : piece.name;
    if (spec.stacked) {
      cut_stack(std::move(dims), tensor, runs);
    } else {
      RunCutter(std::move(dims), tensor, 0).cut(runs);
    }
  }
  return runs;
}

std::vector<ShardRun> cut_runs(const std::vector<ShardRun>& runs, int64_t begin, int64_t end) {
  std::vector<ShardRun> cut;
  for (const ShardRun& run : runs) {
    int64_t at = std::max(begin, run.local) - run.local;
    const int64_t last = std::min(end, run.local + run.count) - run.local;
    while (at < last) {
      // The rest of a partial row, then whole rows, then the start of one.
      const int64_t in_row = at % run.run_length, left = last - at;
      int64_t count = std::min(run.run_length - in_row, left);
      if (in_row == 0 && left > run.run_length) count = left / run.run_length * run.run_length;
      ShardRun piece = piece_of(run, at, count);
      piece.local -= begin;
      cut.push_back(piece);
      at += count;
    }
  }
  return cut;
}

}  // namespace concord
