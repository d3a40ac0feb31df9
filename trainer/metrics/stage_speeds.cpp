#include "trainer/metrics/stage_speeds.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "core/mesh/agreement.h"
#include "platform/loader/host.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/data/batch_division.h"
#include "trainer/metrics/replica_speeds.h"

namespace concord {
namespace {

constexpr int kWarmUpSteps = 2, kTimedSteps = 5;
constexpr double kStepSeconds = 0.04;
constexpr const char* kLayout = "pipeline_model_parallel_layout";

// Nanoseconds of the two products.
int64_t time_of_products(const TrainingPlan& plan, const ParallelContext& job) {
  constexpr int64_t kTokens = 256;
  const at::NoGradGuard no_grad;
  const PrecisionArguments& precision = plan.arguments.precision;
  const auto options = at::TensorOptions(job.torch_device())
                           .dtype(precision.bf16   ? at::kBFloat16
                                  : precision.fp16 ? at::kHalf
                                                   : at::kFloat);
  const at::Tensor x = at::full({kTokens, plan.config.hidden_size}, 0.5, options);
  const at::Tensor weight =
      at::full({plan.config.hidden_size, std::max<int64_t>(1, plan.config.intermediate_size)}, 0.01, options);
  const auto run_for = [&](double seconds) {
    const auto begin = std::chrono::steady_clock::now();
    std::chrono::duration<double> elapsed{};
    int64_t count = 0;
    for (; elapsed.count() < seconds; elapsed = std::chrono::steady_clock::now() - begin, ++count) {
      at::matmul(at::matmul(x, weight), weight.t());
      job.device().synchronize();
    }
    return elapsed.count() / static_cast<double>(count);
  };
  run_for(kWarmUpSteps * kStepSeconds);
  return static_cast<int64_t>(1e9 * run_for(kTimedSteps * kStepSeconds));
}

std::vector<int64_t> measured_layers(const TrainingPlan& plan, ParallelContext& job) {
  job.world_group().barrier().wait();
  const std::vector<int64_t> times = all_gather_scalar(job, time_of_products(plan, job));
  std::vector<int64_t> stage_of;
  for (int64_t rank = 0; rank < job.world(); ++rank) stage_of.push_back(job.layout().coordinates(rank).pp);
  return divide_by_speed(plan.config.num_hidden_layers, relative_speeds(times, stage_of, job.layout().pp()));
}

// "E,t*3|t*1,L"
std::string layout_of_layers(const std::vector<int64_t>& layers, int64_t mtp_layers) {
  std::vector<std::string> stages;
  for (const int64_t count : layers) stages.push_back(fmt::format("t*{}", count));
  return fmt::format("E,{}{},L", fmt::join(stages, "|"), mtp_layers > 0 ? fmt::format(",m*{}", mtp_layers) : "");
}

// The layout that the checkpoint was saved with, as its arguments show it; empty if it had another number of stages.
std::string saved_layout_text(const TrainingPlan& plan) {
  if (!plan.continues()) return "";
  const TrainingState state = read_training_state(plan.resume_from);
  if (state.layout.pp != plan.schedule.pp || state.layout.vpp != plan.schedule.vpp) return "";
  for (const auto& [name, text] : state.arguments) {
    if (name == kLayout && text.size() > 2) return text.substr(1, text.size() - 2);  // without its quotes
  }
  return "";
}

}  // namespace

void assign_layers_by_speed(TrainingPlan* plan, ParallelContext& job) {
  TrainingArguments& a = plan->arguments;
  const LayerAssignment& deal = a.pipeline.deal;
  const bool is_given =
      !a.pipeline.layout.empty() || deal.num_layers_in_first_pipeline_stage || deal.num_layers_in_last_pipeline_stage;
  if (a.steps.heterogeneous_split != kAutomaticSplit || plan->schedule.pp == 1 || plan->schedule.vpp > 1 || is_given)
    return;
  const int64_t mtp_layers = a.model_options.mtp.num_layers;
  const std::string saved = saved_layout_text(*plan);
  a.pipeline.layout = saved.empty() ? layout_of_layers(measured_layers(*plan, job), mtp_layers) : saved;
  plan->stages = parse_layer_layout(a.pipeline.layout, plan->config.num_hidden_layers, plan->schedule.pp, mtp_layers);
  if (job.rank() != 0) return;
  loader::log(CONCORD_LOG_INFO, "train",
              fmt::format("heterogeneous_split: the layout of the layers is {} ({})", a.pipeline.layout,
                          saved.empty() ? "by the measured speeds of the ranks" : "that of the checkpoint"));
}

}  // namespace concord
