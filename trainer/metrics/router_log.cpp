#include "trainer/metrics/router_log.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "core/models/layers/router_record.h"

namespace concord {
namespace {

// Adds the first layers of |record| to |sums| [layers, experts] with one kernel: one per layer would take longer to
// launch than to run.
void add_layers(const RouterRecord& record, at::Tensor RouterRecord::Layer::* which, const at::Tensor& sums) {
  std::vector<at::Tensor> layers;
  at::Tensor none;
  for (int64_t i = 0; i < sums.size(0); ++i) {
    layers.push_back(record.layers[static_cast<size_t>(i)].*which);
    if (layers.back().defined() && !none.defined()) none = at::zeros_like(layers.back());
  }
  if (!none.defined()) return;
  for (at::Tensor& each : layers) {
    if (!each.defined()) each = none;
  }
  const at::Tensor all = at::stack(layers);  // [layers, experts], or [layers, rows, experts]
  sums.add_(all.dim() == 3 ? all.sum(1) : all);
}

}  // namespace

NamedValues load_metrics(const std::vector<std::vector<double>>& chosen,
                         const std::vector<std::vector<double>>& dropped, const std::vector<bool>& sparse) {
  NamedValues metrics;
  double sum = 0, sum_of_rates = 0;
  int64_t layers = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const double tokens = std::accumulate(chosen[i].begin(), chosen[i].end(), 0.0);
    if (!sparse[i] || tokens == 0) continue;
    const double even = tokens / static_cast<double>(chosen[i].size());
    const auto [least, most] = std::minmax_element(chosen[i].begin(), chosen[i].end());
    metrics.emplace_back(fmt::format("expert_load_max_layer_{}", i), *most / even);
    metrics.emplace_back(fmt::format("expert_load_min_layer_{}", i), *least / even);
    sum += *most / even;
    ++layers;
    if (dropped.empty()) continue;
    const double rate = std::accumulate(dropped[i].begin(), dropped[i].end(), 0.0) / tokens;
    metrics.emplace_back(fmt::format("token_drop_rate_layer_{}", i), rate);
    sum_of_rates += rate;
  }
  if (layers == 0) return metrics;
  metrics.emplace_back("load_imbalance", sum / static_cast<double>(layers));
  if (!dropped.empty()) metrics.emplace_back("token_drop_rate", sum_of_rates / static_cast<double>(layers));
  return metrics;
}

void RouterLog::add(const std::vector<std::unique_ptr<ModelStage>>& stages) {
  if (experts_.layers() == 0) return;
  const at::NoGradGuard no_grad;
  if (!chosen_.defined()) {
    const auto options = at::TensorOptions(at::kFloat).device(job_.torch_device());
    chosen_ = at::zeros({static_cast<int64_t>(experts_.sparse.size()), experts_.num_experts}, options);
    dropped_ = at::zeros_like(chosen_);
    losses_ = at::zeros({2}, options);
  }
  micro_batches_ += static_cast<int64_t>(stages.front()->router_records().size());
  for (const auto& stage : stages) {
    for (const auto& record : stage->router_records()) {
      if (record) add(*record);
    }
  }
}

void RouterLog::add(const RouterRecord& record) {
  add_layers(record, &RouterRecord::Layer::chosen, chosen_);  // without MTP layers
  add_layers(record, &RouterRecord::Layer::dropped, dropped_);
  const at::Tensor parts = router_loss_parts(record);
  if (parts.defined()) losses_.add_(parts.to(at::kFloat));
  has_balancing_ = record.losses.balances();
  has_z_ = record.losses.z_coefficient > 0;
}

NamedValues RouterLog::take() {
  if (micro_batches_ == 0) return {};
  // Replicas can have different numbers of micro-batches.
  const at::Tensor batches_here = at::full({1}, static_cast<double>(micro_batches_), losses_.options());
  const at::Tensor all = at::cat({chosen_.flatten(), dropped_.flatten(), losses_, batches_here});
  std::vector<GroupKind> groups{GroupKind::dp_cp, GroupKind::pp};
  if (sequence_parallel_) groups.push_back(GroupKind::tp);   // else its ranks have the same tokens
  int64_t copies = job_.layout().cp() * job_.layout().pp();  // ranks that count a micro-batch
  if (sequence_parallel_) copies *= job_.layout().tp();
  for (const GroupKind kind : groups) {
    if (job_.group(kind).size() > 1) job_.group(kind).all_reduce(all).wait();
  }
  const at::Tensor host = all.cpu();
  const float* values = host.const_data_ptr<float>();
  const auto take_layers = [&] {
    std::vector<std::vector<double>> layers;
    for (size_t i = 0; i < experts_.sparse.size(); ++i, values += experts_.num_experts) {
      layers.emplace_back(values, values + experts_.num_experts);
    }
    return layers;
  };
  const std::vector<std::vector<double>> chosen = take_layers(), dropped = take_layers();
  NamedValues metrics = load_metrics(chosen, has_capacity_ ? dropped : decltype(dropped){}, experts_.sparse);
  const double batches = values[2] / static_cast<double>(copies);
  if (has_balancing_) metrics.emplace_back("router_aux_loss", values[0] / batches);
  if (has_z_) metrics.emplace_back("router_z_loss", values[1] / batches);
  chosen_.zero_();
  dropped_.zero_();
  losses_.zero_();
  micro_batches_ = 0;
  return metrics;
}

}  // namespace concord
