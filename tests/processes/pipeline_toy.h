// A small network for tests of pipelines: blocks x + row(tanh(column(x))), distributed over the stages, with weight
// gradients in sinks and those of biases in autograd. The whole network on one rank is the reference; since every block
// and every addition is the same, gradients must be bitwise identical.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "core/parallel/async_collectives.h"
#include "core/parallel/parallel_linear.h"
#include "core/pipeline/stage.h"
#include "core/schedule/schedule.h"
#include "tests/processes/parallel_samples.h"

namespace concord::tests {

inline constexpr int kBlocks = 8;
inline constexpr int64_t kWidth = 12, kInner = 16;

// Micro-batches of different lengths.
inline int64_t tokens_of(int microbatch) { return 6 + 2 * (microbatch % 3); }
inline at::Tensor toy_input(int microbatch) {
  return sample({tokens_of(microbatch), kWidth}, 1000 + static_cast<uint64_t>(microbatch), at::kFloat);
}

class ToyBlock {
 public:
  ToyBlock(int number, ProcessGroup& tp) : tp_(tp) {
    const auto seed = static_cast<uint64_t>(10 * number);
    const auto leaf = [](const at::Tensor& x) { return x.contiguous().clone().requires_grad_(true); };
    up_ = leaf(own_part(sample({kInner, kWidth}, seed + 1, at::kFloat).mul_(0.3), tp, 0));
    bias_ = leaf(own_part(sample({kInner}, seed + 2, at::kFloat), tp, 0));
    down_ = leaf(own_part(sample({kWidth, kInner}, seed + 3, at::kFloat).mul_(0.3), tp, 1));
    for (GradSink* sink : {&up_sink_, &down_sink_}) {
      const at::Tensor& weight = sink == &up_sink_ ? up_ : down_;
      sink->main = at::zeros_like(weight.detach());
      sink->added = [this] { ++added_; };
    }
  }
  ToyBlock(const ToyBlock&) = delete;

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor inner = column_parallel_linear(x, up_, bias_, tp_, {.name = "up"}, &up_sink_).tanh();
    return x.add(row_parallel_linear(inner, down_, {}, tp_, {.name = "down"}, &down_sink_));
  }
  void defer(DeferredWgrads* later) { up_sink_.deferred = down_sink_.deferred = later; }
  std::vector<at::Tensor> grads() const { return {up_sink_.main, down_sink_.main, bias_.grad()}; }
  int added() const { return added_; }
  void clear() {
    added_ = 0;
    up_sink_.main.zero_();
    down_sink_.main.zero_();
    bias_.mutable_grad() = at::Tensor();
  }

 private:
  ProcessGroup& tp_;
  at::Tensor up_, bias_, down_;
  GradSink up_sink_, down_sink_;
  int added_ = 0;
};

// Returns the loss of a micro-batch; its gradient differs from token to token.
inline at::Tensor toy_loss(const at::Tensor& y) { return y.square().sum().div(7); }

// Consecutive blocks, as a stage.
class ToyStage : public Stage {
 public:
  ToyStage(int stage, int stages, ProcessGroup& tp) : first_(stage == 0), last_(stage == stages - 1) {
    for (int i = stage * kBlocks / stages; i < (stage + 1) * kBlocks / stages; ++i) blocks_.emplace_back(i, tp);
  }

  ValueSpec input_spec(int microbatch) override { return {{tokens_of(microbatch), kWidth}, at::kFloat}; }

  at::Tensor forward(int microbatch, const at::Tensor& input) override {
    EXPECT_EQ(input.defined(), !first_);
    at::Tensor x = first_ ? toy_input(microbatch) : input;
    for (ToyBlock& block : blocks_) x = block.forward(x);
    if (!last_) return x;
    const at::Tensor loss = toy_loss(x);
    losses_[microbatch] = loss.detach();
    return loss;
  }

  void defer_weight_grads(DeferredWgrads* later) override {
    deferred_ |= later != nullptr;
    defers_ = later != nullptr;
    for (ToyBlock& block : blocks_) block.defer(later);
  }
  void reduce_gradients() override {
    ++reductions_;
    added_at_reduction_ = added();
  }

  int added() const {
    int sum = 0;
    for (const ToyBlock& block : blocks_) sum += block.added();
    return sum;
  }
  void clear() {
    for (ToyBlock& block : blocks_) block.clear();
    losses_.clear();
    reductions_ = 0;
  }

  std::deque<ToyBlock>& blocks() { return blocks_; }
  const std::map<int, at::Tensor>& losses() const { return losses_; }
  bool is_last() const { return last_; }
  bool deferred() const { return deferred_; }  // at any time
  bool defers() const { return defers_; }      // currently
  int reductions() const { return reductions_; }
  int added_at_reduction() const { return added_at_reduction_; }

 private:
  bool first_, last_, deferred_ = false, defers_ = false;
  int reductions_ = 0, added_at_reduction_ = 0;
  std::deque<ToyBlock> blocks_;
  std::map<int, at::Tensor> losses_;
};

// The whole network, one micro-batch after the other.
struct ToyReference {
  ToyReference(int microbatches, ProcessGroup& tp) : whole(0, 1, tp) {
    for (int i = 0; i < microbatches; ++i) whole.forward(i, {}).backward();
  }
  std::vector<at::Tensor> grads(int block) { return whole.blocks()[static_cast<size_t>(block)].grads(); }
  ToyStage whole;
};

// Returns this rank's stages of |schedule|.
inline std::deque<ToyStage> toy_stages(const Schedule& schedule, int pp_rank, ProcessGroup& tp) {
  std::deque<ToyStage> stages;
  for (const int stage : stages_of(schedule, pp_rank)) stages.emplace_back(stage, schedule.stages(), tp);
  return stages;
}
inline std::vector<Stage*> pointers(std::deque<ToyStage>& stages) {
  std::vector<Stage*> all;
  for (ToyStage& stage : stages) all.push_back(&stage);
  return all;
}

}  // namespace concord::tests
