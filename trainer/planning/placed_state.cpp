#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/checkpoint/hf_plan.h"
#include "core/data_parallel/bucket_plan.h"
#include "core/optim/plan/state_of_parameter.h"
#include "core/optim/plan/stream_moves.h"
#include "trainer/parameter_groups.h"
#include "trainer/planning/memory_plan_parts.h"

namespace concord {
namespace {

constexpr int64_t kFloat = 4;

int64_t product(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<int64_t>());
}

TensorClass class_of(const std::string& key) {
  if (key == "main") return TensorClass::main_weights;
  if (key == "ema") return TensorClass::average;
  return key == "exp_avg_sq" ? TensorClass::second_moments : TensorClass::first_moments;
}

// Bytes of a frozen weight in nf4, as Nf4Weight::bytes() counts them.
int64_t nf4_bytes(const ShardSpec& weight, const ShardPlace& place, int64_t elements) {
  constexpr int64_t kBlock = 64, kScaledBlocks = 256;  // kNf4Block, kAbsmaxBlock
  ShardSpec blocks = weight;
  blocks.dims[1].size /= kBlock;
  int64_t bytes = elements / 2 + elements / kBlock;
  const std::vector<GlobalTensor> whole = global_tensors(blocks);
  for (const ShardRun& run : shard_runs(blocks, place)) {
    const auto found = std::ranges::find(whole, run.tensor, &GlobalTensor::name);
    bytes += (product(found->shape) + kScaledBlocks - 1) / kScaledBlocks * kFloat;
  }
  return bytes;
}

// Places the parameters of a rank, chunk by chunk.
class StatePlanner {
 public:
  StatePlanner(const TrainingPlan& plan, const RankLayout& layout, int64_t rank, MemoryPlan* memory)
      : plan_(plan),
        a_(plan.arguments),
        layout_(layout),
        rank_(rank),
        place_(shard_place(layout, rank)),
        type_(model_type(plan.arguments)),
        groups_(plan.arguments.groups),
        memory_(memory) {
    if (plan.adapter) adapter_.emplace(*plan.adapter);
    if (a_.optimizer.optimizer_cpu_offload) share_.fraction = a_.optimizer.optimizer_offload_fraction;
    share_.piece = a_.optimizer.host_piece();
    share_.unit = std::max<int64_t>(1, state_alignment(a_.optimizer.precision));
  }

  void run() {
    bool has_embedding = false;
    for (const size_t stage : stages_of_rank(plan_, layout_, rank_)) {
      const StageLayers& layers = plan_.stages[stage];
      const bool borrows = has_embedding && layers.loss && !layers.embedding;
      has_embedding = has_embedding || layers.embedding;
      chunk(layers, borrows);
    }
    place_optimizer();
    place_gradient_sums();
    place_scratch();
  }

 private:
  struct OwnedPart {
    const ShardSpec* spec;
    int64_t elements;
    bool has_main;
  };

  void add(TensorClass kind, const std::string& type, int64_t bytes, Place place = Place::device,
           Moves moves = Moves::never) {
    memory_->add({kind, type, place, moves, bytes, bytes});
  }

  void chunk(const StageLayers& layers, bool borrows) {
    const ModelConfig config = with_mtp(plan_.config, a_.model_options.mtp.num_layers);
    const ParameterPlanOptions options{
        .tp = layout_.tp(),
        .ep = layout_.ep(),
        .etp = layout_.etp(),
        .sequence_parallel = a_.model_options.sequence_parallel,
        .make_vocab_size_divisible_by = a_.model_options.make_vocab_size_divisible_by,
        .borrows_embedding = borrows && (config.tie_word_embeddings || config.mtp_layers > 0),
        .adapter = adapter_ ? &*adapter_ : nullptr};
    std::vector<ParameterPlan>& plans = chunks_.emplace_back(plan_parameters(config, layers, options));
    std::vector<PlannedParameter> trained;
    std::vector<const ShardSpec*> specs;
    for (const ParameterPlan& parameter : plans) {
      const int64_t elements = product(local_shape(parameter.spec, place_));
      if (parameter.linear && a_.model_options.fp8.is_on()) fp8_elements_ += elements;
      if (parameter.buffer || parameter.frozen || groups_.freezes(parameter.spec)) {
        place_frozen(parameter, elements);
        continue;
      }
      const bool alone = parameter.shared_embedding && a_.data_parallel.use_distributed_optimizer && layout_.pp() > 1;
      trained.push_back({parameter.spec.name, elements, type_.dtype, parameter.expert, alone,
                         local_shape(parameter.spec, place_).size() < 2});
      specs.push_back(&parameter.spec);
    }
    if (!trained.empty()) place_buffers(trained, specs);
  }

  void place_frozen(const ParameterPlan& parameter, int64_t elements) {
    const bool is_nf4 = a_.finetuning.quantization_bit == 4 && parameter.linear && parameter.frozen;
    if (parameter.buffer) return add(TensorClass::frozen_weights, "fp32", elements * kFloat);
    if (is_nf4) largest_nf4_ = std::max(largest_nf4_, elements);
    if (is_nf4) return add(TensorClass::frozen_weights, "nf4", nf4_bytes(parameter.spec, place_, elements));
    add(TensorClass::frozen_weights, type_.name, elements * type_.bytes());
  }

  // Weights and gradients are flat buffers with padding; the state has none.
  void place_buffers(const std::vector<PlannedParameter>& trained, const std::vector<const ShardSpec*>& specs) {
    const bool is_first = chunks_.size() == 1;
    const BucketPlan buckets =
        plan_buckets(trained, {.dp = layout_.dp() * layout_.cp(),
                               .edp = layout_.edp(),
                               .bucket_elements = a_.data_parallel.ddp_bucket_size,
                               .one_bucket = !is_first,
                               .distributed_optimizer = a_.data_parallel.use_distributed_optimizer,
                               .alignment = state_alignment(a_.optimizer.precision),
                               .fp32_grads = a_.data_parallel.accumulate_allreduce_grads_in_fp32});
    for (const BucketPlan::Buffer& buffer : buckets.buffers) {
      add(TensorClass::weights, type_.name, buffer.elements * size_of(buffer.dtype));
      add(TensorClass::gradients, buffer.grad_dtype == DType::kF32 ? "fp32" : type_.name,
          buffer.elements * size_of(buffer.grad_dtype));
      const GroupKind group = buffer.expert ? GroupKind::edp : GroupKind::dp_cp;
      const int64_t shard = buffer.shards > 1 ? layout_.group_of(group, rank_)->index_of(rank_).value_or(0) : 0;
      for (const BucketPlan::Bucket& bucket : buffer.buckets) {
        const int64_t size = (bucket.end - bucket.begin) / buffer.shards;
        const int64_t begin = bucket.begin + shard * size, end = begin + size;
        for (const BucketPlan::Slot& slot : bucket.slots) {
          const bool in_layer = specs[slot.parameter]->name.starts_with("model.layers.");
          if (buffer.grad_dtype == DType::kBF16) {
            int64_t& largest = in_layer ? summed_in_layer_ : summed_in_loss_;
            largest = std::max(largest, slot.end - slot.begin);
          }
          const int64_t own = std::min(slot.end, end) - std::max(slot.begin, begin);
          if (own > 0) owned_.push_back({specs[slot.parameter], own, buffer.dtype != DType::kF32});
        }
      }
    }
  }

  // The first elements of the rank are those on the host, as cut_segments() chooses them.
  void place_optimizer() {
    int64_t all = 0;
    for (const OwnedPart& part : owned_) all += part.elements;
    auto left = static_cast<int64_t>(std::llround(share_.fraction * static_cast<double>(all)));
    for (const OwnedPart& part : owned_) {
      int64_t on_host = 0;
      while (left > 0 && on_host < part.elements) {
        const int64_t taken = next_host_piece(part.elements - on_host, left, share_);
        if (taken == 0) left = 0;
        if (taken > 0 && is_streamed(part)) add_streamed(part, taken);
        on_host += taken;
        left -= taken;
      }
      if (on_host > 0) place_part(part, on_host, Place::host);
      if (on_host < part.elements) place_part(part, part.elements - on_host, Place::device);
    }
    // core/optim/state_stream.h: chunks of the state pass through these.
    const std::vector<StreamChunk> chunks = pack_chunks(streamed_, a_.optimizer.offload_chunk_elements);
    add(TensorClass::stream_buffers, "bytes", stream_buffer_bytes(chunks));
  }

  bool is_muon(const OwnedPart& part) const {
    return a_.optimizer.optimizer == OptimizerType::muon && takes_muon(*part.spec);
  }
  bool is_streamed(const OwnedPart& part) const {
    return a_.optimizer.optimizer_offload_update == OffloadUpdate::device && !is_muon(part);
  }

  // A segment that is updated on the device, where its narrow state is widened.
  void add_streamed(const OwnedPart& part, int64_t elements) {
    const StatePlan plan = plan_state(a_.optimizer, *part.spec, part.has_main);
    streamed_.push_back({elements, streamed_bytes(plan, elements)});
    for (const StatePlan::Tensor& tensor : plan.tensors) {
      if (tensor.is_narrow()) count_streamed(tensor.key, elements);
      if (tensor.main == MainParamsType::bf16_stochastic_round) count_streamed("random words", elements);
    }
  }
  // One chunk at a time is widened.
  void count_streamed(const std::string& key, int64_t elements) {
    int64_t& of_chunk = narrow_in_chunk_[key];
    of_chunk = std::min(of_chunk + elements, a_.optimizer.offload_chunk_elements);
    narrow_[key] = std::max(narrow_[key], of_chunk);
  }

  // If the host computes the update of its part, it has copies of gradients and 16-bit weights, and main weights in any
  // case; main weights also if muon updates it on the device.
  void place_part(const OwnedPart& part, int64_t elements, Place place) {
    const bool on_host = place == Place::host, streams = on_host && is_streamed(part);
    const bool has_main = part.has_main || (on_host && !streams);
    for (const StatePlan::Tensor& tensor : plan_state(a_.optimizer, *part.spec, has_main).tensors) {
      add(class_of(tensor.key), std::string(tensor.type_name()), tensor.bytes(elements), place,
          streams ? Moves::streamed : Moves::never);
      if (!on_host && tensor.is_narrow()) narrow_[tensor.key] += elements;
      if (!on_host && tensor.main == MainParamsType::bf16_stochastic_round) narrow_["random words"] += elements;
    }
    if (!on_host || streams || is_muon(part)) return;
    const bool wide = a_.data_parallel.accumulate_allreduce_grads_in_fp32 || !part.has_main;
    add(TensorClass::gradients, wide ? "fp32" : type_.name, elements * (wide ? kFloat : type_.bytes()), place,
        Moves::each_step);
    if (part.has_main) add(TensorClass::weights, type_.name, elements * type_.bytes(), place, Moves::each_step);
  }

  // core/ops/grad_sink.h: what is added to a bf16 gradient is summed in fp32, one parameter at a time.
  void place_gradient_sums() {
    memory_->add({TensorClass::gradient_sums, "fp32", Place::device, Moves::loss, summed_in_loss_ * kFloat, 0});
    memory_->add({TensorClass::gradient_sums, "fp32", Place::device, Moves::layer, summed_in_layer_ * kFloat, 0});
  }

  // core/optim/narrow_state.h: fp32 memory for a piece of each narrow tensor.
  void place_scratch() {
    constexpr int64_t kPiece = int64_t{1} << 23;
    for (const auto& [key, elements] : narrow_) {
      const int64_t bytes = std::min(elements, kPiece) * kFloat;
      memory_->add({TensorClass::optimizer_scratch, "fp32", Place::device, Moves::never, bytes, 0});
    }
    if (largest_nf4_ > 0) {  // one weight at a time, for its product
      memory_->add(
          {TensorClass::dequantised, type_.name, Place::device, Moves::layer, largest_nf4_ * type_.bytes(), 0});
    }
    // FP8 weights are kept twice, by rows and by columns.
    if (fp8_elements_ == 0) return;
    memory_->add({TensorClass::fp8_weights, "fp8", Place::device, Moves::never, 2 * fp8_elements_, 0});
  }

  const TrainingPlan& plan_;
  const TrainingArguments& a_;
  const RankLayout& layout_;
  const int64_t rank_;
  const ShardPlace place_;
  const ModelType type_;
  const ParameterGroups groups_;
  MemoryPlan* const memory_;
  std::optional<AdapterModules> adapter_;
  HostShare share_;
  std::vector<std::vector<ParameterPlan>> chunks_;
  std::vector<OwnedPart> owned_;
  std::vector<StreamPart> streamed_;
  std::map<std::string, int64_t> narrow_;             // elements of narrow state on the device, by key
  std::map<std::string, int64_t> narrow_in_chunk_;    // likewise, of streamed state
  int64_t summed_in_loss_ = 0, summed_in_layer_ = 0;  // elements of the largest parameter with a bf16 gradient
  int64_t fp8_elements_ = 0;
  int64_t largest_nf4_ = 0;  // elements
};

}  // namespace

ModelType model_type(const TrainingArguments& arguments) {
  if (arguments.precision.bf16) return {DType::kBF16, "bf16"};
  if (arguments.precision.fp16) return {DType::kF16, "fp16"};
  return {};
}

std::vector<size_t> stages_of_rank(const TrainingPlan& plan, const RankLayout& layout, int64_t rank) {
  std::vector<size_t> stages;
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    if (plan.schedule.rank_of(static_cast<int>(stage)) == layout.coordinates(rank).pp) stages.push_back(stage);
  }
  return stages;
}

void place_state(const TrainingPlan& plan, const RankLayout& layout, int64_t rank, MemoryPlan* memory) {
  StatePlanner(plan, layout, rank, memory).run();
  if (reference_of(plan) != ReferenceKind::second_model) return;
  // The reference has the model's shape as a rule; its weights are not exact for another one.
  const int64_t bytes = memory->bytes(TensorClass::weights) + memory->bytes(TensorClass::frozen_weights);
  memory->add({TensorClass::reference, model_type(plan.arguments).name, Place::device, Moves::never, bytes, 0});
}

}  // namespace concord
