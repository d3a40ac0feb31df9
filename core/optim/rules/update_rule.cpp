#include "core/optim/rules/update_rule.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sign.h>
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/config_error.h"
#include "core/ops/cpu/parallel.h"
#include "core/ops/optimizer/adamw.h"
#include "core/optim/narrow_state.h"
#include "core/optim/rules/adamw.h"
#include "core/optim/rules/lion.h"
#include "core/optim/rules/sgd.h"
#include "core/optim/state_precision.h"

namespace concord {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kBlock = 32768;  // elements per thread at a time

// Splits the segments into blocks and calls body(index of the segment, begin, end) for each, on several threads.
template <class Body>
void each_block(std::span<Segment* const> segments, const Body& body) {
  struct Block {
    size_t segment;
    int64_t begin;
  };
  std::vector<Block> blocks;
  for (size_t s = 0; s < segments.size(); ++s) {
    for (int64_t begin = 0; begin < segments[s]->size(); begin += kBlock) blocks.push_back({s, begin});
  }
  ops::parallel(static_cast<int64_t>(blocks.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const Block& block = blocks[static_cast<size_t>(i)];
      body(block.segment, block.begin, std::min(block.begin + kBlock, segments[block.segment]->size()));
    }
  });
}

FlatGrads grads_of(const Segment& segment) { return {segment.grads.const_data_ptr(), flat_type(segment.grads)}; }
FlatValues values_of(const Segment& segment) {
  if (!segment.values.defined()) return {};
  return {segment.values.data_ptr(), flat_type(segment.values)};
}

MomentumArrays momentum_arrays(const Segment& segment) {
  return {grads_of(segment), segment.weights.data_ptr<float>(), segment.moments[0].data_ptr<float>(),
          values_of(segment)};
}

// Lists of tensors with the same multipliers: libtorch's operators take one number for a whole list.
struct Lists {
  Tensors grads, weights, momentum;  // grads are fp32 and scaled
};
using ListsByGroup = std::map<GroupMultipliers, Lists>;

ListsByGroup lists_of(std::span<Segment* const> segments, double grad_scale) {
  ListsByGroup groups;
  for (const Segment* segment : segments) {
    Lists& lists = groups[segment->multipliers];
    lists.grads.push_back(segment->grads.to(at::kFloat).mul(grad_scale));
    lists.weights.push_back(segment->weights);
    lists.momentum.push_back(segment->moments[0]);
  }
  return groups;
}

// Sets the 16-bit parameters to the rounded weights.
void round_values(std::span<Segment* const> segments) {
  for (const Segment* segment : segments) {
    if (segment->values.defined()) segment->values.copy_(segment->weights);
  }
}

class AdamWRule : public UpdateRule {
 public:
  explicit AdamWRule(const AdamWSettings& settings) : settings_(settings) {}
  std::vector<std::string> moments() const override { return {"exp_avg", "exp_avg_sq"}; }

  void step_on_host(std::span<Segment* const> segments, const RuleStep& step) const override {
    std::vector<std::pair<AdamWStep, AdamWArrays>> work;
    for (const Segment* s : segments) {
      work.push_back({numbers(step, s->multipliers, step.grad_scale),
                      {grads_of(*s), s->weights.data_ptr<float>(), s->moments[0].data_ptr<float>(),
                       s->moments[1].data_ptr<float>(), values_of(*s)}});
    }
    each_block(segments,
               [&](size_t i, int64_t begin, int64_t end) { adamw(work[i].first, work[i].second, begin, end); });
  }

  void step_on_device(std::span<Segment* const> segments, const RuleStep& step) const override {
    const auto is_same = [](const Segment* s, const Listed& listed) {
      return s == listed.segment && s->grads.is_same(listed.grads) && weights_of(*s).is_same(listed.weights);
    };
    if (!std::ranges::equal(segments, listed_, is_same)) list(segments);
    std::vector<AdamWGroup> work;
    for (const auto& [group, lists] : groups_) {
      work.push_back({lists, numbers(step, group.multipliers, step.grad_scale)});
    }
    adamw_groups_(work, step.factor);
  }

  bool takes_factor(c10::Device) const override { return true; }
  bool takes_narrow_state(c10::Device device) const override { return concord::takes_narrow_state(device); }

 private:
  struct Group {
    GroupMultipliers multipliers;
    bool has_values;
    c10::ScalarType weights, m, v;
    auto operator<=>(const Group&) const = default;
  };

  struct Listed {
    const Segment* segment;
    at::Tensor grads, weights;
  };

  static const at::Tensor& weights_of(const Segment& segment) {
    return segment.remainder.defined() ? segment.remainder : segment.weights;
  }

  // Builds the lists of tensors. Segments keep their tensors, so this happens once: the device would idle meanwhile.
  void list(std::span<Segment* const> segments) const {
    groups_.clear();
    listed_.clear();
    for (const Segment* s : segments) {
      listed_.push_back({s, s->grads, weights_of(*s)});
      AdamWLists& lists = groups_[{s->multipliers, s->values.defined(), weights_of(*s).scalar_type(),
                                   s->moments[0].scalar_type(), s->moments[1].scalar_type()}];
      lists.weights.push_back(weights_of(*s));
      lists.m.push_back(s->moments[0]);
      lists.v.push_back(s->moments[1]);
      if (s->values.defined()) lists.values.push_back(s->values);
      lists.grads.push_back(s->grads);
      if (s->moments[0].scalar_type() == at::kByte) lists.m_scales.push_back(s->scales[0]);
      if (s->moments[1].scalar_type() == at::kByte) lists.v_scales.push_back(s->scales[1]);
    }
  }

  AdamWStep numbers(const RuleStep& step, const GroupMultipliers& group, double grad_scale) const {
    return adamw_step(settings_, step.lr_of(group), step.weight_decay_of(group), grad_scale, step.t);
  }

  AdamWSettings settings_;
  mutable std::vector<Listed> listed_;
  mutable std::map<Group, AdamWLists> groups_;
};

class SgdRule : public UpdateRule {
 public:
  explicit SgdRule(double momentum) : momentum_(momentum) {}
  std::vector<std::string> moments() const override { return {"momentum"}; }

  void step_on_host(std::span<Segment* const> segments, const RuleStep& step) const override {
    std::vector<std::pair<SgdStep, MomentumArrays>> work;
    for (const Segment* s : segments) {
      work.emplace_back(numbers(step, s->multipliers, step.grad_scale), momentum_arrays(*s));
    }
    each_block(segments, [&](size_t i, int64_t begin, int64_t end) { sgd(work[i].first, work[i].second, begin, end); });
  }

  void step_on_device(std::span<Segment* const> segments, const RuleStep& step) const override {
    for (auto& [multipliers, lists] : lists_of(segments, step.grad_scale)) {
      const SgdStep n = numbers(step, multipliers, 1);
      // g = g + weight_decay w
      at::_foreach_add_(lists.grads, lists.weights, n.weight_decay);
      // b_t = momentum b + g
      at::_foreach_mul_(lists.momentum, n.momentum);
      at::_foreach_add_(lists.momentum, lists.grads);
      // w_t = w - lr b_t
      at::_foreach_add_(lists.weights, lists.momentum, -n.lr);
    }
    round_values(segments);
  }

 private:
  SgdStep numbers(const RuleStep& step, const GroupMultipliers& group, double grad_scale) const {
    return {static_cast<float>(grad_scale), static_cast<float>(step.weight_decay_of(group)),
            static_cast<float>(momentum_), static_cast<float>(step.lr_of(group))};
  }

  double momentum_;
};

class LionRule : public UpdateRule {
 public:
  LionRule(double beta1, double beta2) : beta1_(beta1), beta2_(beta2) {}
  std::vector<std::string> moments() const override { return {"exp_avg"}; }

  void step_on_host(std::span<Segment* const> segments, const RuleStep& step) const override {
    std::vector<std::pair<LionStep, MomentumArrays>> work;
    for (const Segment* s : segments) {
      work.emplace_back(numbers(step, s->multipliers, step.grad_scale), momentum_arrays(*s));
    }
    each_block(segments,
               [&](size_t i, int64_t begin, int64_t end) { lion(work[i].first, work[i].second, begin, end); });
  }

  void step_on_device(std::span<Segment* const> segments, const RuleStep& step) const override {
    for (auto& [multipliers, lists] : lists_of(segments, step.grad_scale)) {
      const LionStep n = numbers(step, multipliers, 1);
      // c = beta1 m + (1 - beta1) g
      Tensors c = at::_foreach_mul(lists.momentum, n.beta1);
      at::_foreach_add_(c, lists.grads, 1 - n.beta1);
      // w_t = w - lr (sign(c) + weight_decay w)
      at::_foreach_sign_(c);
      at::_foreach_add_(c, lists.weights, n.weight_decay);
      at::_foreach_add_(lists.weights, c, -n.lr);
      // m_t = beta2 m + (1 - beta2) g
      at::_foreach_mul_(lists.momentum, n.beta2);
      at::_foreach_add_(lists.momentum, lists.grads, 1 - n.beta2);
    }
    round_values(segments);
  }

 private:
  LionStep numbers(const RuleStep& step, const GroupMultipliers& group, double grad_scale) const {
    return {static_cast<float>(grad_scale), static_cast<float>(step.weight_decay_of(group)), static_cast<float>(beta1_),
            static_cast<float>(beta2_), static_cast<float>(step.lr_of(group))};
  }

  double beta1_, beta2_;
};

void check_between(const char* name, double value, double low, double high) {
  if (value >= low && value < high) return;
  throw ConfigError(fmt::format("{} is {:g}; must be >= {:g} and < {:g}", name, value, low, high));
}

std::unique_ptr<UpdateRule> fp32_rule(const OptimizerOptions& options) {
  if (options.optimizer == OptimizerType::sgd) return std::make_unique<SgdRule>(options.sgd_momentum);
  if (options.optimizer == OptimizerType::lion)
    return std::make_unique<LionRule>(options.adam_beta1, options.adam_beta2);
  return std::make_unique<AdamWRule>(AdamWSettings{options.adam_beta1, options.adam_beta2, options.adam_epsilon});
}

}  // namespace

std::unique_ptr<UpdateRule> make_rule(const OptimizerOptions& options) {
  check_between("adam_beta1", options.adam_beta1, 0, 1);
  check_between("adam_beta2", options.adam_beta2, 0, 1);
  check_between("adam_epsilon", options.adam_epsilon, 0, 1);
  check_between("sgd_momentum", options.sgd_momentum, 0, 1);
  check_state_precision(options);
  std::unique_ptr<UpdateRule> rule = fp32_rule(options);
  if (options.precision == StatePrecision{}) return rule;
  return with_narrow_state(std::move(rule), options.precision);
}

}  // namespace concord
