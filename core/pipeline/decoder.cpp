#include "core/pipeline/decoder.h"

#include "core/schedule/step_schedule.h"

namespace concord {

// A chunk with its cache. The schedule has one micro-batch, which is the step.
class Decoder::DecodeStage : public Stage {
 public:
  DecodeStage(ModelChunk& chunk, int64_t rows, int64_t capacity, int64_t hidden_size)
      : chunk_(chunk), cache_(chunk.make_cache(rows, capacity)), hidden_size_(hidden_size) {}

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
  void defer_weight_grads(DeferredGrads*) override {}

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
}

Decoder::~Decoder() = default;

at::Tensor Decoder::step(const NewTokens& tokens) {
  for (DecodeStage& stage : stages_) stage.begin(tokens);
  executor_->run();
  return stages_.back().take_logits();
}

}  // namespace concord
