#include "trainer/objective/reference_table.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <filesystem>

#include "core/base/stable_hash.h"
#include "core/checkpoint/tensor_files.h"
#include "platform/loader/host.h"
#include "trainer/data/to_micro_batch.h"

namespace concord {
namespace {

constexpr const char* kTensor = "logps";
constexpr const char* kIdentity = "identity";

// The samples of another source, which outlives it.
class Borrowed : public SampleSource {
 public:
  explicit Borrowed(const SampleSource& source) : source_(source) {}
  int64_t size() const override { return source_.size(); }
  Sample at(int64_t index) const override { return source_.at(index); }
  int64_t length(int64_t index) const override { return source_.length(index); }
  DataIdentity identity() const override { return source_.identity(); }
  const std::string& name() const override { return source_.name(); }

 private:
  const SampleSource& source_;
};

// What the numbers depend on.
int64_t identity_of(const TrainingPlan& plan) {
  const TrainingArguments& a = plan.arguments;
  const std::string& folder = a.preference.ref_model.empty() ? a.model.path : a.preference.ref_model;
  std::string text = fmt::format("reference {}\nconfig {}\nadapter {}\nld_alpha {}\nseed {}\nbf16 {} fp16 {}\n", folder,
                                 a.model.config, plan.adapter_folder, a.preference.ld_alpha, a.job.seed,
                                 a.precision.bf16, a.precision.fp16);
  for (const std::string& merged : plan.merged_adapters) text += fmt::format("merged {}\n", merged);
  if (a.finetuning.quantization_bit != 0) text += fmt::format("bits {}\n", a.finetuning.quantization_bit);
  for (const auto& [name, value] : plan.train_data->source().identity()) text += fmt::format("{} {}\n", name, value);
  return static_cast<int64_t>(stable_hash(text));
}

std::optional<at::Tensor> read(const std::string& file, int64_t identity, int64_t pairs) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return std::nullopt;
  const safetensors::Reader reader(file);
  if (reader.find(kTensor) == nullptr || reader.find(kIdentity) == nullptr) return std::nullopt;
  const at::Tensor logps = read_tensor(reader, kTensor), saved = read_tensor(reader, kIdentity);
  const bool is_same = saved.scalar_type() == at::kLong && saved.numel() == 1 && saved.item<int64_t>() == identity;
  const bool fits =
      logps.scalar_type() == at::kDouble && logps.dim() == 2 && logps.size(0) == pairs && logps.size(1) == 2;
  return is_same && fits ? std::optional(logps) : std::nullopt;
}

at::Tensor computed(const TrainingPlan& plan, ParallelContext& job, const ReferenceTable::Compute& compute) {
  DataArguments data = plan.data;
  data.shuffle = false;
  data.drop_last = false;
  data.ramp.reset();
  data.accumulation = plan.schedule.pp;  // keeps a pipeline full
  DataLoader loader(data, std::make_unique<Borrowed>(plan.train_data->source()));
  at::Tensor logps = at::zeros({loader.samples(), 2}, at::kDouble);
  // Tensor- and context-parallel ranks have the same numbers; one of them brings them into the sum.
  const bool counts = job.coordinates().tp == 0 && job.coordinates().cp == 0;
  for (int64_t step = 0; step < loader.batches(0); ++step) {
    const std::vector<MicroBatch> batches = *next_micro_batches(loader);
    const std::vector<at::Tensor> results = compute(batches);
    for (size_t i = 0; counts && i < results.size(); ++i) {
      const at::Tensor values = results[i].to(at::kCPU).view({-1, 2});
      for (int64_t pair = 0; pair < values.size(0); ++pair) {
        logps[batches[i].pairs[static_cast<size_t>(pair)]].copy_(values[pair]);
      }
    }
  }
  // In two fp32 parts, since not every vendor reduces fp64; all ranks except one hold 0, so nothing is rounded.
  const at::Tensor coarse = logps.to(at::kFloat), fine = (logps - coarse).to(at::kFloat);
  const at::Tensor parts = at::stack({coarse, fine}).to(job.torch_device());
  job.world_group().all_reduce(parts).wait();
  return parts.to(at::kCPU, at::kDouble).sum(0);
}

bool all_have(ParallelContext& job, bool has) {
  const at::Tensor flag = at::full({1}, int64_t{has}, at::TensorOptions(at::kLong).device(job.torch_device()));
  job.world_group().all_reduce(flag, ReduceOp::kMin).wait();
  return flag.item<int64_t>() != 0;
}

}  // namespace

ReferenceTable::ReferenceTable(const TrainingPlan& plan, ParallelContext& job, const Compute& compute) : job_(job) {
  const std::string file = plan.arguments.output.dir + "/" + kReferenceFile;
  const int64_t identity = identity_of(plan), pairs = plan.train_data->samples();
  const std::optional<at::Tensor> saved = read(file, identity, pairs);
  if (all_have(job, saved.has_value())) {
    logps_ = *saved;
    return;
  }
  if (job.rank() == 0) {
    loader::log(CONCORD_LOG_INFO, "train",
                fmt::format("computing the reference's log-probabilities of {} pairs", pairs));
  }
  logps_ = computed(plan, job, compute);
  if (job.rank() == plan.writing_rank())
    write_tensors(file, {{kTensor, logps_}, {kIdentity, at::full({1}, identity, at::kLong)}});
}

at::Tensor ReferenceTable::of(const MicroBatch& batch) const {
  std::vector<int64_t> pairs;
  for (const int64_t pair : batch.pairs) {
    if (pair >= 0) pairs.push_back(pair);
  }
  return logps_.index_select(0, at::tensor(pairs, at::kLong)).flatten().to(job_.torch_device());
}

}  // namespace concord
