#include "core/mesh/rank_layout.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/config_error.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

constexpr int64_t kMaxWorld = int64_t{1} << 40;
constexpr std::string_view kAxisTexts[] = {"tp", "cp", "ep", "dp", "pp"};

constexpr std::array<GroupKind, kGroupKinds> kKinds = {
    GroupKind::tp,       GroupKind::pp,       GroupKind::dp,        GroupKind::cp,
    GroupKind::dp_cp,    GroupKind::tp_pp,    GroupKind::tp_dp,     GroupKind::tp_cp,
    GroupKind::tp_dp_cp, GroupKind::ep,       GroupKind::etp,       GroupKind::edp,
    GroupKind::tp_ep,    GroupKind::tp_ep_pp, GroupKind::embedding, GroupKind::position_embedding,
};

void check_size(const char* name, int64_t value) {
  if (value < 1) throw ConfigError(fmt::format("{} is {}; must be >= 1", name, value));
}

// Returns the product of |factors|, or throws before it can overflow: no product of sizes may exceed the world size.
int64_t product_within(std::initializer_list<int64_t> factors, int64_t limit) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (factor > limit / product) return limit + 1;
    product *= factor;
  }
  return product;
}

bool is_embedding(GroupKind kind) { return kind == GroupKind::embedding || kind == GroupKind::position_embedding; }

}  // namespace

std::string_view to_string(GroupKind kind) {
  constexpr std::string_view names[kGroupKinds] = {
      "tp",       "pp", "dp",  "cp",  "dp_cp", "tp_pp",    "tp_dp",     "tp_cp",
      "tp_dp_cp", "ep", "etp", "edp", "tp_ep", "tp_ep_pp", "embedding", "position_embedding"};
  return names[static_cast<size_t>(kind)];
}

std::span<const GroupKind> all_group_kinds() { return kKinds; }

RankGroup::RankGroup(int64_t first, std::span<const Axis> axes) : first_(first), size_(1) {
  for (const Axis& axis : axes) {
    if (axis.count == 1) continue;
    size_ *= axis.count;
    if (!axes_.empty() && axes_.back().stride * axes_.back().count == axis.stride) {
      axes_.back().count *= axis.count;
    } else {
      axes_.push_back(axis);
    }
  }
}

int64_t RankGroup::operator[](int64_t index) const {
  int64_t rank = first_;
  for (const Axis& axis : axes_) {
    rank += index % axis.count * axis.stride;
    index /= axis.count;
  }
  return rank;
}

std::optional<int64_t> RankGroup::index_of(int64_t rank) const {
  // From the slowest stride down, each digit is a division. Axes are not sorted by stride (an order may put pp before
  // tp), so the digits are taken by stride and weighted by their position in the list.
  std::vector<size_t> by_stride(axes_.size());
  for (size_t i = 0; i < by_stride.size(); ++i) by_stride[i] = i;
  std::sort(by_stride.begin(), by_stride.end(), [&](size_t a, size_t b) { return axes_[a].stride > axes_[b].stride; });
  std::vector<int64_t> weight(axes_.size(), 1);
  for (size_t i = 1; i < axes_.size(); ++i) weight[i] = weight[i - 1] * axes_[i - 1].count;

  int64_t rest = rank - first_;
  if (rest < 0) return std::nullopt;
  int64_t index = 0;
  for (const size_t i : by_stride) {
    const int64_t digit = std::min(rest / axes_[i].stride, axes_[i].count - 1);
    rest -= digit * axes_[i].stride;
    index += digit * weight[i];
  }
  if (rest != 0) return std::nullopt;
  return index;
}

std::vector<int64_t> RankGroup::members() const {
  std::vector<int64_t> result(static_cast<size_t>(size_));
  for (int64_t i = 0; i < size_; ++i) result[static_cast<size_t>(i)] = (*this)[i];
  return result;
}

std::string RankGroup::to_string() const {
  if (size_ <= 16) return fmt::format("{}", fmt::join(members(), ","));
  std::string text = fmt::format("{}", first_);
  for (const Axis& axis : axes_) text += fmt::format(" + {}x{}", axis.count, axis.stride);
  return text;
}

RankLayout::RankLayout(const ParallelSizes& sizes) : sizes_(sizes) {
  if (sizes_.expert_tensor == 0) sizes_.expert_tensor = sizes_.tensor;
  check_size("world_size", sizes_.world);
  check_size("tensor_model_parallel_size", sizes_.tensor);
  check_size("context_parallel_size", sizes_.context);
  check_size("pipeline_model_parallel_size", sizes_.pipeline);
  check_size("virtual_pipeline_model_parallel_size", sizes_.virtual_pipeline);
  check_size("expert_model_parallel_size", sizes_.expert);
  check_size("expert_tensor_parallel_size", sizes_.expert_tensor);
  const int64_t world = sizes_.world;
  if (world > kMaxWorld) throw ConfigError(fmt::format("world_size is {}; must be <= 2^40", world));
  if (sizes_.virtual_pipeline > 1 && sizes_.pipeline == 1) {
    throw ConfigError(
        fmt::format("virtual_pipeline_model_parallel_size is {} but pipeline_model_parallel_size is 1; the interleaved "
                    "schedule needs at least 2 pipeline stages",
                    sizes_.virtual_pipeline));
  }
  const int64_t dense = product_within({sizes_.tensor, sizes_.context, sizes_.pipeline}, world);
  if (world % dense != 0) {
    throw ConfigError(
        fmt::format("tensor {} x context {} x pipeline {} does not divide world size {}; choose sizes whose "
                    "product divides {}",
                    sizes_.tensor, sizes_.context, sizes_.pipeline, world, world));
  }
  const int64_t expert = product_within({sizes_.expert_tensor, sizes_.expert, sizes_.pipeline}, world);
  if (world % expert != 0) {
    throw ConfigError(
        fmt::format("expert tensor {} x expert {} x pipeline {} does not divide world size {}; choose "
                    "expert_tensor_parallel_size and expert_model_parallel_size so that the product divides {}",
                    sizes_.expert_tensor, sizes_.expert, sizes_.pipeline, world, world));
  }
  dp_ = world / dense;
  edp_ = world / expert;
  fastest_first_ = parse_order();
  dense_ = factorise({sizes_.tensor, sizes_.context, 1, dp_, sizes_.pipeline});
  expert_ = factorise({sizes_.expert_tensor, 1, sizes_.expert, edp_, sizes_.pipeline});
  check_pipelines_agree();
}

std::array<RankLayout::AxisName, RankLayout::kAxisNames> RankLayout::parse_order() const {
  std::array<AxisName, kAxisNames> axes{};
  std::array<bool, kAxisNames> seen{};
  size_t count = 0;
  const std::string_view order = sizes_.order;
  for (size_t begin = 0; begin <= order.size();) {
    const size_t end = std::min(order.find('-', begin), order.size());
    const std::string_view name = order.substr(begin, end - begin);
    const auto known = std::find(std::begin(kAxisTexts), std::end(kAxisTexts), name);
    if (known == std::end(kAxisTexts)) {
      throw ConfigError(
          fmt::format("order {} has the unknown axis {}; axes are tp, cp, ep, dp, pp", quoted(order), quoted(name)));
    }
    const auto axis = static_cast<AxisName>(known - std::begin(kAxisTexts));
    if (seen[axis]) throw ConfigError(fmt::format("order {} contains the axis {} twice", quoted(order), name));
    seen[axis] = true;
    axes[count++] = axis;
    begin = end + 1;
  }
  // An axis may be omitted if its size is 1: it then varies slowest, which changes nothing.
  const int64_t sizes[kAxisNames] = {std::max(tp(), etp()), cp(), ep(), std::max(dp_, edp_), pp()};
  for (int axis = 0; axis < kAxisNames; ++axis) {
    if (seen[static_cast<size_t>(axis)]) continue;
    if (sizes[axis] != 1) {
      throw ConfigError(fmt::format(
          "order {} omits {}, whose size is {}; include every axis larger than 1, for example tp-cp-ep-dp-pp",
          quoted(order), kAxisTexts[axis], sizes[axis]));
    }
    axes[count++] = static_cast<AxisName>(axis);
  }
  return axes;
}

RankLayout::Factorisation RankLayout::factorise(const std::array<int64_t, kAxisNames>& counts) const {
  Factorisation result{{}, fastest_first_};
  int64_t stride = 1;
  for (const AxisName axis : fastest_first_) {
    result.axes[axis] = {counts[axis], stride};
    stride *= counts[axis];
  }
  return result;
}

// Dense and expert layers of one stage are on the same ranks, so both factorizations must split the pipeline in the
// same way.
void RankLayout::check_pipelines_agree() const {
  if (pp() == 1 || dense_.axes[kPp].stride == expert_.axes[kPp].stride) return;
  throw ConfigError(fmt::format(
      "order {} puts pp before dp, so dense and expert layers need the same pipeline groups: tensor {} x context {} "
      "must equal expert tensor {} x expert {}; use an order that ends in pp, or change these sizes",
      quoted(order()), tp(), cp(), etp(), ep()));
}

void RankLayout::check_rank(int64_t rank) const {
  if (rank < 0 || rank >= world()) {
    throw ConfigError(
        fmt::format("rank is {}; with world size {} it must be from 0 to {}", rank, world(), world() - 1));
  }
}

RankCoordinates RankLayout::coordinates(int64_t rank) const {
  check_rank(rank);
  const auto digit = [rank](const Factorisation& f, AxisName axis) {
    return rank / f.axes[axis].stride % f.axes[axis].count;
  };
  return {digit(dense_, kTp),  digit(dense_, kCp),  digit(dense_, kDp), digit(dense_, kPp),
          digit(expert_, kTp), digit(expert_, kEp), digit(expert_, kDp)};
}

int64_t RankLayout::rank_at(int64_t tp, int64_t cp, int64_t dp, int64_t pp) const {
  return tp * dense_.axes[kTp].stride + cp * dense_.axes[kCp].stride + dp * dense_.axes[kDp].stride +
         pp * dense_.axes[kPp].stride;
}

RankLayout::Selection RankLayout::select(GroupKind kind) const {
  Selection selection{&dense_, {}};
  const auto spans = [&](const Factorisation& factorisation, std::initializer_list<AxisName> axes) {
    selection.factorisation = &factorisation;
    for (const AxisName axis : axes) selection.inside[axis] = true;
    return selection;
  };
  switch (kind) {
    case GroupKind::tp: return spans(dense_, {kTp});
    case GroupKind::pp: return spans(dense_, {kPp});
    case GroupKind::dp: return spans(dense_, {kDp});
    case GroupKind::cp: return spans(dense_, {kCp});
    case GroupKind::dp_cp: return spans(dense_, {kDp, kCp});
    case GroupKind::tp_pp: return spans(dense_, {kTp, kPp});
    case GroupKind::tp_dp: return spans(dense_, {kTp, kDp});
    case GroupKind::tp_cp: return spans(dense_, {kTp, kCp});
    case GroupKind::tp_dp_cp: return spans(dense_, {kTp, kDp, kCp});
    case GroupKind::ep: return spans(expert_, {kEp});
    case GroupKind::etp: return spans(expert_, {kTp});
    case GroupKind::edp: return spans(expert_, {kDp});
    case GroupKind::tp_ep: return spans(expert_, {kTp, kEp});
    case GroupKind::tp_ep_pp: return spans(expert_, {kTp, kEp, kPp});
    case GroupKind::embedding:
    case GroupKind::position_embedding: return spans(dense_, {kPp});
  }
  throw ConfigError("unknown group kind");
}

namespace {

// The ranks of a pipeline that hold embeddings: the first stage and, for the tied output layer, the last one too.
RankGroup embedding_ranks(GroupKind kind, const RankGroup& pipeline) {
  if (kind == GroupKind::position_embedding || pipeline.size() == 1) return RankGroup(pipeline.first(), {});
  const RankGroup::Axis ends[] = {{2, pipeline[pipeline.size() - 1] - pipeline.first()}};
  return RankGroup(pipeline.first(), ends);
}

}  // namespace

std::optional<RankGroup> RankLayout::group_of(GroupKind kind, int64_t rank) const {
  check_rank(rank);
  const Selection selection = select(kind);
  std::vector<RankGroup::Axis> axes;
  int64_t first = rank;
  for (const AxisName name : selection.factorisation->fastest_first) {
    const Axis& axis = selection.factorisation->axes[name];
    if (!selection.inside[name]) continue;
    axes.push_back({axis.count, axis.stride});
    first -= rank / axis.stride % axis.count * axis.stride;
  }
  const RankGroup group(first, axes);
  if (!is_embedding(kind)) return group;
  const RankGroup ends = embedding_ranks(kind, group);
  return ends.index_of(rank) ? std::optional(ends) : std::nullopt;
}

int64_t RankLayout::group_count(GroupKind kind) const {
  const Selection selection = select(kind);
  int64_t count = 1;
  for (int axis = 0; axis < kAxisNames; ++axis) {
    if (!selection.inside[static_cast<size_t>(axis)])
      count *= selection.factorisation->axes[static_cast<size_t>(axis)].count;
  }
  return count;
}

RankGroup RankLayout::group(GroupKind kind, int64_t index) const {
  const int64_t count = group_count(kind);
  if (index < 0 || index >= count) {
    throw ConfigError(fmt::format("{} group index is {}; there are {} groups", to_string(kind), index, count));
  }
  const Selection selection = select(kind);
  int64_t first = 0;
  for (const AxisName name : selection.factorisation->fastest_first) {
    if (selection.inside[name]) continue;
    const Axis& axis = selection.factorisation->axes[name];
    first += index % axis.count * axis.stride;
    index /= axis.count;
  }
  return *group_of(kind, first);  // |first| is the first member, which is in embedding groups too
}

}  // namespace concord
