#include "core/optim/narrow_state.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace concord {
namespace {

constexpr int64_t kHostPiece = int64_t{1} << 20, kDevicePiece = int64_t{1} << 23;  // elements

bool is_wide(const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat; }

// fp32 memory for the moments of one batch. It stays, so that a step allocates nothing.
struct Scratch {
  std::vector<at::Tensor> moments;

  void reserve(const Segment& like, int64_t elements) {
    moments.resize(like.moments.size());
    for (size_t i = 0; i < moments.size(); ++i) {
      if (is_wide(like.moments[i]) || (moments[i].defined() && moments[i].numel() >= elements)) continue;
      moments[i] = at::empty({elements}, like.moments[i].options().dtype(at::kFloat));
    }
  }
};

// Parts of segments with wide moments.
class Batch {
 public:
  explicit Batch(const Scratch& scratch) : scratch_(scratch) {}

  int64_t elements() const { return elements_; }

  void add(const Segment& segment, int64_t begin, int64_t count) {
    Segment part = segment;
    part.range = {segment.range.begin + begin, segment.range.begin + begin + count};
    part.local_begin += begin;
    for (at::Tensor* tensor : {&part.grads, &part.weights, &part.values}) {
      if (tensor->defined()) *tensor = tensor->narrow(0, begin, count);
    }
    for (size_t i = 0; i < part.moments.size(); ++i) {
      const at::Tensor kept = segment.moments[i].narrow(0, begin, count);
      part.moments[i] = is_wide(kept) ? kept : scratch_.moments[i].narrow(0, elements_, count).copy_(kept);
      if (!is_wide(kept)) narrow_.emplace_back(kept, part.moments[i]);
    }
    parts_.push_back(std::move(part));
    elements_ += count;
  }

  // Calls body(parts) and stores their moments.
  template <class Body>
  void update(const Body& body) {
    std::vector<Segment*> parts;
    for (Segment& part : parts_) parts.push_back(&part);
    body(parts);
    for (const auto& [kept, wide] : narrow_) kept.copy_(wide);
    parts_.clear();
    narrow_.clear();
    elements_ = 0;
  }

 private:
  const Scratch& scratch_;
  std::vector<Segment> parts_;
  std::vector<std::pair<at::Tensor, at::Tensor>> narrow_;  // what is kept, and its wide form
  int64_t elements_ = 0;
};

class NarrowStateRule : public UpdateRule {
 public:
  explicit NarrowStateRule(std::unique_ptr<UpdateRule> rule) : rule_(std::move(rule)) {}
  std::vector<std::string> moments() const override { return rule_->moments(); }
  bool takes_factor() const override { return rule_->takes_factor(); }

  void step_on_host(std::span<Segment* const> segments, const RuleStep& step) const override {
    each_batch(segments, kHostPiece, &on_host_,
               [&](std::span<Segment* const> parts) { rule_->step_on_host(parts, step); });
  }
  void step_on_device(std::span<Segment* const> segments, const RuleStep& step) const override {
    each_batch(segments, kDevicePiece, &on_device_,
               [&](std::span<Segment* const> parts) { rule_->step_on_device(parts, step); });
  }

 private:
  template <class Body>
  static void each_batch(std::span<Segment* const> segments, int64_t piece, Scratch* scratch, const Body& body) {
    if (segments.empty()) return;
    int64_t elements = 0;
    for (const Segment* segment : segments) elements += segment->size();
    scratch->reserve(*segments.front(), std::min(elements, piece));
    Batch batch(*scratch);
    for (const Segment* segment : segments) {
      for (int64_t begin = 0, count = 0; begin < segment->size(); begin += count) {
        count = std::min(piece - batch.elements(), segment->size() - begin);
        batch.add(*segment, begin, count);
        if (batch.elements() == piece) batch.update(body);
      }
    }
    if (batch.elements() > 0) batch.update(body);
  }

  std::unique_ptr<UpdateRule> rule_;
  mutable Scratch on_host_, on_device_;
};

}  // namespace

c10::ScalarType scalar_type(StateType type) { return type == StateType::bf16 ? at::kBFloat16 : at::kFloat; }

std::unique_ptr<UpdateRule> with_narrow_state(std::unique_ptr<UpdateRule> rule) {
  return std::make_unique<NarrowStateRule>(std::move(rule));
}

}  // namespace concord
