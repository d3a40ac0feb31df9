#include "core/optim/narrow_state.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/ops/optimizer/block_codes.h"

namespace concord {
namespace {

constexpr int64_t kHostPiece = int64_t{1} << 20, kDevicePiece = int64_t{1} << 23;  // elements

bool is_wide(const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat; }
bool has_codes(const at::Tensor& tensor) { return tensor.scalar_type() == at::kByte; }

// A part of a moment, with its scales if it is in codes.
struct Kept {
  at::Tensor values, scales;
  const std::string* key;

  Kept(const Segment& segment, size_t i, const std::string& key_of, int64_t begin, int64_t count) : key(&key_of) {
    values = segment.moments[i].narrow(0, begin, count);
    if (has_codes(values)) scales = segment.scales[i].narrow(0, begin / kStateBlock, count / kStateBlock);
  }

  void load(const at::Tensor& wide) const {
    has_codes(values) ? decode_blocks(values, scales, code_map_of(*key), wide) : void(wide.copy_(values));
  }
  void store(const at::Tensor& wide) const {
    has_codes(values) ? encode_blocks(wide, code_map_of(*key), values, scales) : void(values.copy_(wide));
  }
};

// fp32 memory for the moments of one batch. It stays, so that a step allocates nothing.
struct Scratch {
  std::vector<at::Tensor> moments;

  void reserve(std::span<Segment* const> segments, int64_t elements) {
    moments.resize(segments.front()->moments.size());
    for (const Segment* segment : segments) {
      for (size_t i = 0; i < moments.size(); ++i) {
        const at::Tensor& kept = segment->moments[i];
        if (is_wide(kept) || (moments[i].defined() && moments[i].numel() >= elements)) continue;
        moments[i] = at::empty({elements}, kept.options().dtype(at::kFloat));
      }
    }
  }
};

// Parts of segments with wide moments.
class Batch {
 public:
  Batch(const Scratch& scratch, const std::vector<std::string>& keys) : scratch_(scratch), keys_(keys) {}

  int64_t elements() const { return elements_; }

  void add(const Segment& segment, int64_t begin, int64_t count) {
    Segment part = segment;
    part.range = {segment.range.begin + begin, segment.range.begin + begin + count};
    part.local_begin += begin;
    for (at::Tensor* tensor : {&part.grads, &part.weights, &part.values}) {
      if (tensor->defined()) *tensor = tensor->narrow(0, begin, count);
    }
    for (size_t i = 0; i < part.moments.size(); ++i) {
      const Kept kept(segment, i, keys_[i], begin, count);
      part.moments[i] = is_wide(kept.values) ? kept.values : scratch_.moments[i].narrow(0, elements_, count);
      if (is_wide(kept.values)) continue;
      kept.load(part.moments[i]);
      narrow_.emplace_back(kept, part.moments[i]);
    }
    parts_.push_back(std::move(part));
    elements_ += count;
  }

  // Calls body(parts) and stores their moments.
  template <class Body>
  void update(const Body& body) {
    std::vector<Segment*> parts;
    for (Segment& part : parts_) parts.push_back(&part);
    if (!parts.empty()) body(parts);
    for (const auto& [kept, wide] : narrow_) kept.store(wide);
    parts_.clear();
    narrow_.clear();
    elements_ = 0;
  }

 private:
  const Scratch& scratch_;
  const std::vector<std::string>& keys_;
  std::vector<Segment> parts_;
  std::vector<std::pair<Kept, at::Tensor>> narrow_;  // what is kept, and its wide form
  int64_t elements_ = 0;
};

class NarrowStateRule : public UpdateRule {
 public:
  NarrowStateRule(std::unique_ptr<UpdateRule> rule, bool has_codes)
      : rule_(std::move(rule)), keys_(rule_->moments()), has_codes_(has_codes) {}
  std::vector<std::string> moments() const override { return keys_; }
  bool takes_factor() const override { return rule_->takes_factor() && !has_codes_; }

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
  void each_batch(std::span<Segment* const> segments, int64_t piece, Scratch* scratch, const Body& body) const {
    if (segments.empty()) return;
    int64_t elements = 0;
    for (const Segment* segment : segments) elements += segment->size();
    scratch->reserve(segments, std::min(elements, piece));
    Batch batch(*scratch, keys_);
    for (const Segment* segment : segments) {
      for (int64_t begin = 0, count = 0; begin < segment->size(); begin += count) {
        const int64_t left = segment->size() - begin, room = piece - batch.elements();
        count = left <= room ? left : room / kStateBlock * kStateBlock;  // blocks are not split
        if (count > 0) batch.add(*segment, begin, count);
        if (count < left) batch.update(body);
      }
    }
    batch.update(body);
  }

  std::unique_ptr<UpdateRule> rule_;
  const std::vector<std::string> keys_;
  const bool has_codes_;
  mutable Scratch on_host_, on_device_;
};

}  // namespace

c10::ScalarType scalar_type(StateType type) {
  switch (type) {
    case StateType::fp32: return at::kFloat;
    case StateType::bf16: return at::kBFloat16;
    default: return at::kByte;
  }
}

at::Tensor wide_moment(const Segment& segment, size_t i, const std::string& key) {
  const at::Tensor& moment = segment.moments[i];
  if (is_wide(moment)) return moment;
  const at::Tensor wide = at::empty({segment.size()}, moment.options().dtype(at::kFloat));
  Kept(segment, i, key, 0, segment.size()).load(wide);
  return wide;
}

void store_moment(const Segment& segment, size_t i, const std::string& key, const at::Tensor& wide) {
  if (!wide.is_same(segment.moments[i])) Kept(segment, i, key, 0, segment.size()).store(wide);
}

void zero_moment(const at::Tensor& moment, const at::Tensor& scales, const std::string& key) {
  moment.fill_(has_codes(moment) ? code_of_zero(code_map_of(key)) : 0);
  if (scales.defined()) scales.zero_();
}

std::unique_ptr<UpdateRule> with_narrow_state(std::unique_ptr<UpdateRule> rule, bool has_codes) {
  return std::make_unique<NarrowStateRule>(std::move(rule), has_codes);
}

}  // namespace concord
