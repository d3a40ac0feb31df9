#include "core/pipeline/decoder.h"

#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <string>
#include <utility>

#include "core/schedule/step_schedule.h"
#include "platform/loader/error.h"
#include "platform/loader/host.h"

namespace concord {
namespace {

bool is_replay_wanted() {
  const std::string how = loader::setting("decode").value_or("replay");
  if (how != "replay" && how != "eager") {
    throw Error(CONCORD_STATUS_INVALID_ARGUMENT,
                fmt::format("CONCORD_DECODE is '{}'; it must be replay (the default) or eager", how));
  }
  return how == "replay";
}

}  // namespace

// A chunk with its cache. The schedule has one micro-batch, which is the step.
class Decoder::DecodeStage : public Stage {
 public:
  DecodeStage(ModelChunk& chunk, int64_t rows, int64_t capacity, int64_t hidden_size)
      : chunk_(chunk), cache_(chunk.make_cache(rows, capacity)), hidden_size_(hidden_size) {}

  void make_steps_equal() { cache_->make_steps_equal(); }
  void begin(const NewTokens& tokens) { tokens_ = tokens; }
  at::Tensor take_logits() { return std::move(logits_); }

  ValueSpec input_spec(int) override {
    return {{tokens_.ids.size(1), tokens_.ids.size(0), hidden_size_}, chunk_.hidden_dtype()};
  }
  at::Tensor forward(int, const at::Tensor& input) override {
    const at::Tensor output = chunk_.decode(input, tokens_, *cache_);
    if (chunk_.is_last()) logits_ = output;
    return output;
  }
  void defer_weight_grads(DeferredWgrads*) override {}

 private:
  ModelChunk& chunk_;
  std::unique_ptr<KvCache> cache_;
  int64_t hidden_size_;
  NewTokens tokens_;
  at::Tensor logits_;
};

Decoder::Decoder(VirtualModels& models, ParallelContext& job, int64_t rows, int64_t capacity) {
  std::vector<Stage*> list;
  for (size_t i = 0; i < models.size(); ++i) {
    list.push_back(&stages_.emplace_back(models[i], rows, capacity, models.config().hidden_size));
  }
  executor_ = std::make_unique<Executor>(single_schedule(models.args().placement, static_cast<int>(job.layout().pp()),
                                                         static_cast<int>(job.layout().vpp()), /*backward=*/false),
                                         std::move(list), job);
  // Collectives of several ranks run on dedicated streams.
  const bool replays = is_replay_wanted() && job.world() == 1 && GraphedCallable::is_possible(job.torch_device());
  if (replays) make_replayable(job.torch_device(), rows);
}

// All stages are here, one after another: no executor is needed.
void Decoder::make_replayable(c10::Device device, int64_t rows) {
  const auto whole = at::TensorOptions(at::kLong).device(device);
  tokens_ = {at::zeros({rows, 1}, whole), at::zeros({rows}, whole)};
  for (DecodeStage& stage : stages_) stage.make_steps_equal();
  one_token_.emplace(device, "a step of generation", [this] {
    at::Tensor passed;
    for (DecodeStage& stage : stages_) {
      stage.begin(tokens_);
      passed = stage.forward(0, passed);
    }
    logits_ = stages_.back().take_logits();
  });
}

Decoder::~Decoder() = default;

at::Tensor Decoder::step(const NewTokens& tokens) {
  if (std::exchange(has_begun_, true) && one_token_) {
    tokens_.ids.copy_(tokens.ids);
    tokens_.counts.copy_(tokens.counts);
    one_token_->run();
    return logits_;
  }
  for (DecodeStage& stage : stages_) stage.begin(tokens);
  executor_->run();
  return stages_.back().take_logits();
}

}  // namespace concord
