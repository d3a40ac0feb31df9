#include "tests/parity/hf_golden.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "core/checkpoint/hf_weights.h"
#include "core/models/token_slices.h"

namespace concord::tests {
std::filesystem::path golden(const std::string& path) { return std::filesystem::path(CONCORD_GOLDEN) / path; }

TensorMap read_tensors(const std::string& path) {
  const safetensors::Reader file(path);
  TensorMap result;
  for (const safetensors::TensorInfo& info : file.tensors()) result[info.name] = read_tensor(file, info.name);
  return result;
}

MicroBatch golden_batch(const TensorMap& expected) {
  return {expected.at("input_ids"), labels_that_follow(expected.at("labels"))};
}

namespace {

double largest_difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

// Norm of the difference over norm of the reference.
double relative_difference(const at::Tensor& result, const at::Tensor& reference) {
  const at::Tensor wide = reference.to(at::kDouble);
  return ((result - wide).norm() / wide.norm()).item<double>();
}

// Like relative_difference, for all gradients together.
double gradients_difference(const ProbeResult& result, const TensorMap& expected) {
  double difference = 0, size = 0;
  for (const auto& [name, reference] : expected) {
    if (!name.starts_with("grad.")) continue;
    const at::Tensor wide = reference.to(at::kDouble);
    difference += (result.at(name) - wide).square().sum().item<double>();
    size += wide.square().sum().item<double>();
  }
  return std::sqrt(difference / size);
}

// Differences by name, each as a fraction of its bound.
std::map<std::string, double> shares_of_bounds(const ProbeResult& result, const TensorMap& expected,
                                               const Bounds& bounds) {
  const at::Tensor &logits = result.at("logits"), &wanted = expected.at("logits");
  std::map<std::string, double> shares{
      {"logits", largest_difference(logits, wanted) / bounds.logits},
      {"norm of logits", relative_difference(logits, wanted) / bounds.logits_norm},
      {"loss", largest_difference(result.at("loss"), expected.at("loss")) / bounds.loss},
      {"norm of all gradients", gradients_difference(result, expected) / bounds.gradients_norm}};
  for (const auto& [name, reference] : expected) {
    if (name.starts_with("grad.")) shares[name] = relative_difference(result.at(name), reference) / bounds.gradient;
  }
  return shares;
}

}  // namespace

double share_of_bounds(const ProbeResult& result, const TensorMap& expected, const Bounds& bounds) {
  double largest = 0;
  for (const auto& [name, share] : shares_of_bounds(result, expected, bounds)) largest = std::max(largest, share);
  return largest;
}

void expect_parity(const ProbeResult& result, const TensorMap& expected, const Bounds& bounds) {
  ASSERT_EQ(result.at("logits").sizes(), expected.at("logits").sizes());
  for (const auto& [name, reference] : expected) {
    if (!name.starts_with("grad.")) continue;
    ASSERT_TRUE(result.contains(name)) << name;
    ASSERT_EQ(result.at(name).sizes(), reference.sizes()) << name;
  }
  for (const auto& [name, tensor] : result) {
    EXPECT_TRUE(!name.starts_with("grad.") || expected.contains(name)) << name;
  }
  std::pair<std::string, double> largest;
  for (const auto& [name, share] : shares_of_bounds(result, expected, bounds)) {
    EXPECT_LE(share, 1) << name;
    if (share >= largest.second) largest = {name, share};
  }
  std::printf("largest difference %.2g of its bound (%s)\n", largest.second, largest.first.c_str());
}

void run_golden(const std::filesystem::path& folder, const Layout& layout, const MicroBatch& batch, const Check& check,
                const ProbeOptions& options) {
  const int port = free_port();
  const auto outcomes = run_ranks(layout.world, [&](int rank) {
    enter_job(rank, layout.world, port);
    set_variable("CONCORD_LOG", "warn");
    ParallelContext& context = initialize(layout.sizes);
    {
      ModelConfig config = read_model_config(folder / layout.config);
      if (layout.spoil_config) layout.spoil_config(config);
      VirtualModels models(config, layout.args, context);
      const auto is_adapter = [](const Parameter* parameter) { return parameter->adapter; };
      std::vector<Parameter*> own = models.parameters();
      std::erase_if(own, is_adapter);
      load_hf_weights(folder.string(), own, shard_place(context.layout(), context.rank()));
      if (layout.args.adapter) models.load_saved(layout.args.adapter_folder);
      if (layout.spoil_model) layout.spoil_model(models);
      const ProbeResult result = probe(models, batch, options, context);
      if (rank == 0) check(result);
    }
    finalize();
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.ok()) << folder.filename().string() << ", " << layout.name << "\n" << outcome.describe();
    std::printf("%s", outcome.output.c_str());
  }
}

}  // namespace concord::tests
