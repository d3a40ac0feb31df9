// The layout of ranks: pure functions from the sizes of a job to coordinates and groups, as arithmetic.
//
// The ranks 0 .. world-1 are factorised twice:
//   dense layers    world = TP * CP * DP * PP
//   expert layers   world = ETP * EP * EDP * PP
// |order| lists the axes from the fastest varying to the slowest ("tp-cp-ep-dp-pp" is Megatron's default). In the dense
// factorisation the axis ep has size 1; in the expert one cp has size 1, tp is ETP and dp is EDP. Megatron's older
// formula world = TP * PP * CP * EP * DP' is the case DP' = DP / EP.
//
// No function enumerates the world: a rank's own group costs O(axes), and a group is stored as a few (count, stride)
// pairs until its members are requested. So the same code works for 16 ranks and for 2^40. Threads: all values are
// immutable.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace concord {

// The sizes that the user chooses. expert_tensor 0 means the value of tensor. virtual_pipeline is the number of chunks
// per rank; 1: no interleaving.
struct ParallelSizes {
  int64_t world = 1;
  int64_t tensor = 1;
  int64_t context = 1;
  int64_t pipeline = 1;
  int64_t virtual_pipeline = 1;
  int64_t expert = 1;
  int64_t expert_tensor = 0;
  std::string order = "tp-cp-ep-dp-pp";
};

// A set of ranks first + sum of i_k * stride_k, 0 <= i_k < count_k, listed with the first axis fastest.
class RankGroup {
 public:
  struct Axis {
    int64_t count;
    int64_t stride;
    bool operator==(const Axis&) const = default;
  };

  RankGroup(int64_t first, std::span<const Axis> axes);  // adjacent axes that continue each other are merged

  int64_t size() const { return size_; }
  int64_t first() const { return first_; }
  std::span<const Axis> axes() const { return axes_; }

  int64_t operator[](int64_t index) const;              // the member at |index|, 0 <= index < size()
  std::optional<int64_t> index_of(int64_t rank) const;  // index of |rank| in the group; nullopt if it is not a member
  std::vector<int64_t> members() const;                 // O(size)
  std::string to_string() const;                        // "0,4,8,12" if short, otherwise "0 + 8x4 + 2x64"
  bool operator==(const RankGroup&) const = default;

 private:
  int64_t first_;
  int64_t size_;
  std::vector<Axis> axes_;
};

// The kinds of group, named as Megatron's users know them; tp_pp is Megatron's "mp".
enum class GroupKind {
  tp,
  pp,
  dp,
  cp,
  dp_cp,
  tp_pp,
  tp_dp,
  tp_cp,
  tp_dp_cp,
  ep,
  etp,
  edp,
  tp_ep,
  tp_ep_pp,
  embedding,
  position_embedding,
};
inline constexpr int kGroupKinds = 16;

std::string_view to_string(GroupKind kind);
std::span<const GroupKind> all_group_kinds();  // in the order in which `concord plan` prints them

// The coordinates of a rank in both factorisations.
struct RankCoordinates {
  int64_t tp, cp, dp, pp;
  int64_t etp, ep, edp;
  bool operator==(const RankCoordinates&) const = default;
};

class RankLayout {
 public:
  // Throws ConfigError with the numbers and what to change for sizes below 1, sizes that do not divide the world, an
  // unknown, duplicate or missing axis in |order|, virtual_pipeline without pipeline, and pp before dp if the dense and
  // expert factorisations differ.
  explicit RankLayout(const ParallelSizes& sizes);

  int64_t world() const { return sizes_.world; }
  int64_t tp() const { return sizes_.tensor; }
  int64_t cp() const { return sizes_.context; }
  int64_t dp() const { return dp_; }
  int64_t pp() const { return sizes_.pipeline; }
  int64_t vpp() const { return sizes_.virtual_pipeline; }
  int64_t ep() const { return sizes_.expert; }
  int64_t etp() const { return sizes_.expert_tensor; }
  int64_t edp() const { return edp_; }
  const std::string& order() const { return sizes_.order; }
  const ParallelSizes& sizes() const { return sizes_; }

  RankCoordinates coordinates(int64_t rank) const;  // throws ConfigError if there is no such rank
  int64_t rank_at(int64_t tp, int64_t cp, int64_t dp, int64_t pp) const;

  // Returns the group of |kind| that contains |rank|; nullopt if there is none (embedding groups). O(axes).
  std::optional<RankGroup> group_of(GroupKind kind, int64_t rank) const;

  // All groups of a kind, in Megatron's order: group(kind, 0 .. group_count(kind)-1).
  int64_t group_count(GroupKind kind) const;
  RankGroup group(GroupKind kind, int64_t index) const;

 private:
  enum AxisName { kTp, kCp, kEp, kDp, kPp, kAxisNames };
  struct Axis {
    int64_t count;
    int64_t stride;
  };
  // One factorisation: count and stride of each axis, and the axes from fastest to slowest.
  struct Factorisation {
    std::array<Axis, kAxisNames> axes;
    std::array<AxisName, kAxisNames> fastest_first;
  };
  struct Selection {
    const Factorisation* factorisation;
    std::array<bool, kAxisNames> inside;  // axes that a group spans; the others distinguish groups
  };

  std::array<AxisName, kAxisNames> parse_order() const;
  Factorisation factorise(const std::array<int64_t, kAxisNames>& counts) const;
  void check_pipelines_agree() const;
  Selection select(GroupKind kind) const;
  void check_rank(int64_t rank) const;

  ParallelSizes sizes_;
  int64_t dp_ = 1;
  int64_t edp_ = 1;
  std::array<AxisName, kAxisNames> fastest_first_{};
  Factorisation dense_{};
  Factorisation expert_{};
};

}  // namespace concord
