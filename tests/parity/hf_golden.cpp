#include "tests/parity/hf_golden.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cstdio>

#include "core/models/hf_weights.h"
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

}  // namespace

double share_of_bounds(const ProbeResult& result, const TensorMap& expected, const Bounds& bounds) {
  double share = largest_difference(result.at("logits"), expected.at("logits")) / bounds.logits;
  share = std::max(share, largest_difference(result.at("loss"), expected.at("loss")) / bounds.loss);
  for (const auto& [name, reference] : expected) {
    if (!name.starts_with("grad.")) continue;
    share = std::max(share, relative_difference(result.at(name), reference) / bounds.gradient);
  }
  return share;
}

void expect_parity(const ProbeResult& result, const TensorMap& expected, const Bounds& bounds) {
  ASSERT_EQ(result.at("logits").sizes(), expected.at("logits").sizes());
  for (const auto& [name, reference] : expected) {
    if (!name.starts_with("grad.")) continue;
    ASSERT_TRUE(result.contains(name)) << name;
    ASSERT_EQ(result.at(name).sizes(), reference.sizes()) << name;
    EXPECT_LE(relative_difference(result.at(name), reference), bounds.gradient) << name;
  }
  for (const auto& [name, tensor] : result) {
    EXPECT_TRUE(!name.starts_with("grad.") || expected.contains(name)) << name;
  }
  EXPECT_LE(largest_difference(result.at("logits"), expected.at("logits")), bounds.logits);
  EXPECT_LE(largest_difference(result.at("loss"), expected.at("loss")), bounds.loss);
  std::printf("largest difference %.2g of its bound\n", share_of_bounds(result, expected, bounds));
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
