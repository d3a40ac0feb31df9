#include "core/optim/narrow_state.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/ops/optimizer/block_codes.h"
#include "core/optim/main_weights.h"

namespace concord {
namespace {

constexpr int64_t kHostPiece = int64_t{1} << 20, kDevicePiece = int64_t{1} << 23;  // elements

bool is_wide(const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat; }
bool has_codes(const at::Tensor& tensor) { return tensor.scalar_type() == at::kByte; }

at::Tensor blocks_of(const at::Tensor& flat) { return flat.view({-1, kStateBlock}); }

void decode_scaled(const at::Tensor& values, const at::Tensor& scales, const at::Tensor& wide) {
  wide.copy_(values);
  blocks_of(wide).mul_(scales.unsqueeze(1));
}

void encode_scaled(const at::Tensor& wide, const at::Tensor& values, const at::Tensor& scales) {
  constexpr double kLeast = 1e-12;
  const double largest = values.scalar_type() == at::kHalf ? 65504 : 448;
  scales.copy_(blocks_of(wide).abs().amax(1).clamp_min_(kLeast).div_(largest));
  blocks_of(values).copy_(blocks_of(wide).div(scales.unsqueeze(1)));
}

// A part of a moment, with its scales if it is in codes.
struct Kept {
  at::Tensor values, scales;
  const std::string* key;

  Kept(const Segment& segment, size_t i, const std::string& key_of, int64_t begin, int64_t count) : key(&key_of) {
    values = segment.moments[i].narrow(0, begin, count);
    if (has_scales(values.scalar_type()))
      scales = segment.scales[i].narrow(0, begin / kStateBlock, count / kStateBlock);
  }

  void load(const at::Tensor& wide) const {
    if (!scales.defined()) return void(wide.copy_(values));
    has_codes(values) ? decode_blocks(values, scales, code_map_of(*key), wide) : decode_scaled(values, scales, wide);
  }
  void store(const at::Tensor& wide) const {
    if (!scales.defined()) return void(values.copy_(wide));
    has_codes(values) ? encode_blocks(wide, code_map_of(*key), values, scales) : encode_scaled(wide, values, scales);
  }
};

// fp32 memory for the state of one batch. It stays, so that a step allocates nothing.
struct Scratch {
  std::vector<at::Tensor> moments;
  at::Tensor weights;

  static void reserve(const at::Tensor& kept, int64_t elements, at::Tensor* memory) {
    if (memory->defined() && memory->numel() >= elements) return;
    *memory = at::empty({elements}, kept.options().dtype(at::kFloat));
  }

  void reserve(std::span<Segment* const> segments, int64_t elements) {
    moments.resize(segments.front()->moments.size());
    for (const Segment* segment : segments) {
      for (size_t i = 0; i < moments.size(); ++i) {
        if (!is_wide(segment->moments[i])) reserve(segment->moments[i], elements, &moments[i]);
      }
      if (segment->has_narrow_main()) reserve(segment->values, elements, &weights);
    }
  }
};

// Parts of segments with wide state.
class Batch {
 public:
  // The batch of |update|, which counts from 1.
  Batch(const Scratch& scratch, const std::vector<std::string>& keys, int64_t update)
      : scratch_(scratch), keys_(keys), update_(update) {}

  int64_t elements() const { return elements_; }

  void add(const Segment& segment, int64_t begin, int64_t count) {
    Segment part = part_of(segment, begin, count);
    for (size_t i = 0; i < part.moments.size(); ++i) {
      if (is_wide(part.moments[i])) continue;
      const Kept kept(segment, i, keys_[i], begin, count);
      part.moments[i] = scratch_.moments[i].narrow(0, elements_, count);
      kept.load(part.moments[i]);
      narrow_.emplace_back(kept, part.moments[i]);
    }
    if (part.has_narrow_main()) {
      const at::Tensor wide = scratch_.weights.narrow(0, elements_, count);
      load_weights(part, wide);
      weights_.emplace_back(part, wide);
      part.weights = wide;
      part.values = part.remainder = at::Tensor();  // they follow |weights| at the end
    }
    parts_.push_back(std::move(part));
    elements_ += count;
  }

  // Calls body(parts) and stores their state.
  template <class Body>
  void update(const Body& body) {
    std::vector<Segment*> parts;
    for (Segment& part : parts_) parts.push_back(&part);
    if (!parts.empty()) body(parts);
    for (const auto& [kept, wide] : narrow_) kept.store(wide);
    for (const auto& [kept, wide] : weights_) store_weights(kept, wide, update_);
    parts_.clear();
    weights_.clear();
    narrow_.clear();
    elements_ = 0;
  }

 private:
  const Scratch& scratch_;
  const std::vector<std::string>& keys_;
  const int64_t update_;
  std::vector<Segment> parts_;
  std::vector<std::pair<Kept, at::Tensor>> narrow_;  // what is kept, and its wide form
  std::vector<std::pair<Segment, at::Tensor>> weights_;
  int64_t elements_ = 0;
};

class NarrowStateRule : public UpdateRule {
 public:
  NarrowStateRule(std::unique_ptr<UpdateRule> rule, const StatePrecision& precision)
      : rule_(std::move(rule)), keys_(rule_->moments()), precision_(precision) {}
  std::vector<std::string> moments() const override { return keys_; }
  bool takes_factor(c10::Device device) const override {
    return rule_->takes_factor(device) && (!precision_.has_blocks() || has_kernel(device));
  }

  void step_on_host(std::span<Segment* const> segments, const RuleStep& step) const override {
    each_batch(segments, kHostPiece, &on_host_, step.t,
               [&](std::span<Segment* const> parts) { rule_->step_on_host(parts, step); });
  }
  void step_on_device(std::span<Segment* const> segments, const RuleStep& step) const override {
    if (segments.empty()) return;
    if (has_kernel(segments.front()->grads.device())) return rule_->step_on_device(segments, step);
    each_batch(segments, kDevicePiece, &on_device_, step.t,
               [&](std::span<Segment* const> parts) { rule_->step_on_device(parts, step); });
  }

 private:
  // The kernel reads and writes main weights in fp32 or with a remainder, and neither fp8 nor fp16.
  bool has_kernel(c10::Device device) const {
    const MainParamsType main = precision_.main_params_dtype;
    const auto takes = [](StateType type) { return type != StateType::fp8 && type != StateType::fp16; };
    return takes(precision_.exp_avg_dtype) && takes(precision_.exp_avg_sq_dtype) &&
           (main == MainParamsType::fp32 || main == MainParamsType::remainder) && rule_->takes_narrow_state(device);
  }

  template <class Body>
  void each_batch(std::span<Segment* const> segments, int64_t piece, Scratch* scratch, int64_t update,
                  const Body& body) const {
    if (segments.empty()) return;
    int64_t elements = 0;
    for (const Segment* segment : segments) elements += segment->size();
    scratch->reserve(segments, std::min(elements, piece));
    Batch batch(*scratch, keys_, update);
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
  const StatePrecision precision_;
  mutable Scratch on_host_, on_device_;
};

}  // namespace

c10::ScalarType scalar_type(StateType type) {
  switch (type) {
    case StateType::fp32: return at::kFloat;
    case StateType::bf16: return at::kBFloat16;
    case StateType::fp16: return at::kHalf;
    case StateType::fp8: return at::kFloat8_e4m3fn;
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
  // Bytes, since not every device fills fp8.
  const at::Tensor values = moment.element_size() == 1 ? moment.view(at::kByte) : moment;
  values.fill_(has_codes(moment) ? code_of_zero(code_map_of(key)) : 0);
  if (scales.defined()) scales.zero_();
}

Segment part_of(const Segment& segment, int64_t begin, int64_t count) {
  Segment part = segment;
  part.range = {segment.range.begin + begin, segment.range.begin + begin + count};
  part.local_begin += begin;
  const auto narrow = [](at::Tensor& tensor, int64_t from, int64_t elements) {
    if (tensor.defined()) tensor = tensor.narrow(0, from, elements);
  };
  for (at::Tensor* tensor : {&part.grads, &part.weights, &part.values, &part.remainder, &part.average}) {
    narrow(*tensor, begin, count);
  }
  for (at::Tensor& moment : part.moments) narrow(moment, begin, count);
  for (at::Tensor& scales : part.scales) narrow(scales, begin / kStateBlock, count / kStateBlock);
  part.runs = cut_runs(segment.runs, begin, begin + count);
  return part;
}

std::vector<Segment> pieces_of(const Segment& segment) {
  if (!segment.has_narrow_main()) return {segment};
  std::vector<Segment> pieces;
  for (int64_t begin = 0; begin < segment.size(); begin += kDevicePiece) {
    pieces.push_back(part_of(segment, begin, std::min(kDevicePiece, segment.size() - begin)));
  }
  return pieces;
}

std::unique_ptr<UpdateRule> with_narrow_state(std::unique_ptr<UpdateRule> rule, const StatePrecision& precision) {
  return std::make_unique<NarrowStateRule>(std::move(rule), precision);
}

}  // namespace concord
