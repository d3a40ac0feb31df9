// tests/golden/train through the program itself: `concord train` with a configuration file, with several layouts.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "core/safetensors/reader.h"
#include "core/safetensors/writer.h"
#include "tests/processes/train_program.h"

namespace concord::testing_processes {
namespace {

using nlohmann::json;

// Bounds of train_test.cpp, for float32.
constexpr double kLoss = 5e-5, kNorm = 5e-5, kSum = 2e-5, kRamp = 2e-6, kSquares = 2e-5;

json read_golden(const std::string& name) { return json::parse(std::ifstream(kGolden + "/train/" + name + ".json")); }

// Returns the model of |golden|; older files do not name it.
std::string model_of(const json& golden) {
  return golden.contains("model") ? kGolden + "/" + golden["model"].get<std::string>() : kTinyModel;
}

// Writes the golden samples under the names that the program expects.
void write_data(const std::string& path, const std::string& labels) {
  const safetensors::Reader golden(kGolden + "/train/tokens.safetensors");
  const safetensors::TensorInfo& ids = golden.at("input_ids");
  safetensors::Writer writer(path, {{"input_ids", ids.dtype, ids.shape}, {"labels", ids.dtype, ids.shape}});
  writer.write("input_ids", 0, golden.data(ids));
  writer.write("labels", 0, golden.data(golden.at(labels)));
  writer.finish();
}

// |rows| samples per micro-batch on each of |dp| ranks.
std::string configuration(const json& golden, const std::string& folder, int dp, int micro_batches,
                          const std::string& layout) {
  const json& h = golden["hyperparameters"];
  const int rows = h["batch"].get<int>() / dp / micro_batches;
  return fmt::format(
      "model: {}\ntrain_data: {}/data.safetensors\noutput_dir: {}/out\nshuffle: false\n"
      "per_device_train_batch_size: {}\ngradient_accumulation_steps: {}\nmax_steps: {}\n"
      "learning_rate: {}\nmin_lr: {}\nwarmup_steps: {}\nlr_scheduler_type: cosine\nlr_step_offset: 1\n"
      "adam_beta1: {}\nadam_beta2: {}\nadam_epsilon: {}\nweight_decay: {}\nmax_grad_norm: {}\nlogging_steps: 1\n"
      "report_to: [none]\n{}",
      model_of(golden), folder, folder, rows, micro_batches, h["steps"].get<int>(), h["lr"].get<double>(),
      h["min_lr"].get<double>(), h["warmup"].get<int>(), h["betas"][0].get<double>(), h["betas"][1].get<double>(),
      h["eps"].get<double>(), h["weight_decay"].get<double>(), h["clip"].get<double>(), layout);
}

void expect_steps(const std::vector<json>& got, const json& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i]["step"], wanted[i]["step"]);
    EXPECT_NEAR(got[i]["loss"].get<double>(), wanted[i]["loss"].get<double>(), kLoss) << "step " << i + 1;
    const double norm = wanted[i]["grad_norm"].get<double>();
    EXPECT_NEAR(got[i]["grad_norm"].get<double>(), norm, kNorm * norm) << "step " << i + 1;
    const double lr = wanted[i]["lr"].get<double>();
    EXPECT_NEAR(got[i]["learning_rate"].get<double>(), lr, 1e-12) << "step " << i + 1;
  }
}

void expect_weights(const std::string& file, const json& wanted) {
  const safetensors::Reader reader(file);
  EXPECT_EQ(reader.tensors().size(), wanted.size());
  for (const auto& [name, sums] : wanted.items()) {
    const std::span<const std::byte> bytes = reader.data(reader.at(name));
    double sum = 0, squares = 0, ramp = 0;
    const size_t elements = bytes.size() / sizeof(float);
    for (size_t i = 0; i < elements; ++i) {
      float value;
      std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
      sum += value;
      squares += double{value} * value;
      ramp += double{value} * static_cast<double>(i % 251) / 251;
    }
    const double size = std::sqrt(sums["sumsq"].get<double>() * static_cast<double>(elements));
    EXPECT_NEAR(sum, sums["sum"].get<double>(), kSum * size) << name;
    EXPECT_NEAR(ramp, sums["ramp"].get<double>(), kRamp * size) << name;
    EXPECT_NEAR(squares, sums["sumsq"].get<double>(), kSquares * sums["sumsq"].get<double>()) << name;
  }
}

struct Layout {
  const char* name;
  int world;
  int dp;
  int micro_batches;
  const char* arguments;
};

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

class TrainsLikePyTorch : public ::testing::TestWithParam<Layout> {};

void expect_golden(const std::string& name, const std::string& labels, const Layout& layout, int micro_batches) {
  const TemporaryFolder folder;
  const json golden = read_golden(name);
  write_data(folder.path() + "/data.safetensors", labels);
  std::ofstream(folder.path() + "/run.yaml")
      << configuration(golden, folder.path(), layout.dp, micro_batches, layout.arguments);
  TrainProgram program({"--config", folder.path() + "/run.yaml", "--nproc", std::to_string(layout.world)});
  ASSERT_EQ(program.exit_code(), 0) << program.err() << program.out();
  expect_steps(read_steps(folder.path() + "/out"), golden["steps"]);
  expect_weights(folder.path() + "/out/model/model.safetensors", golden["final_weights"]);
}

TEST_P(TrainsLikePyTorch, WithFullBatches) {
  expect_golden("full_batch", "labels_full", GetParam(), GetParam().micro_batches);
}

TEST_P(TrainsLikePyTorch, WithUnevenMicroBatches) {
  expect_golden("accumulate", "labels_uneven", GetParam(), std::max(2, GetParam().micro_batches));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, TrainsLikePyTorch,
    ::testing::Values(Layout{"One", 1, 1, 1, ""},
                      Layout{
                          "Dp2", 2, 2, 1,
                          "use_distributed_optimizer: true\noverlap_grad_reduce: true\noverlap_param_gather: true\n"},
                      Layout{"Tp2Sp", 2, 1, 1, "tensor_model_parallel_size: 2\nsequence_parallel: true\n"},
                      Layout{"Cp2", 2, 1, 1, "context_parallel_size: 2\n"},
                      Layout{"Pp2", 2, 1, 4, "pipeline_model_parallel_size: 2\n"},
                      Layout{"Pp2ZeroBubble", 2, 1, 4, "pipeline_model_parallel_size: 2\npipeline_schedule: zb-h1\n"},
                      Layout{"Tp2Dp2", 4, 2, 1,
                             "tensor_model_parallel_size: 2\noverlap_grad_reduce: true\ndelay_grad_reduce: false\n"}),
    [](const auto& layout) { return layout.param.name; });

// Experts of which each of two data-parallel ranks holds half, compared with transformers
// (tests/golden/train/make_experts.py).
class TrainsExpertsLikeTransformers : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(TrainsExpertsLikeTransformers, UnderDataAndExpertParallelism) {
  const TemporaryFolder folder;
  const auto& [name, average] = GetParam();
  const json golden = read_golden(name);
  std::filesystem::copy(fmt::format("{}/train/{}.safetensors", kGolden, name), folder.path() + "/data.safetensors");
  std::string arguments = std::string("expert_model_parallel_size: 2\n") + average;
  for (const json& argument : golden["arguments"]) arguments += argument.get<std::string>() + "\n";
  std::ofstream(folder.path() + "/run.yaml") << configuration(golden, folder.path(), 2, 2, arguments);
  TrainProgram program({"--config", folder.path() + "/run.yaml", "--nproc", "2"});
  ASSERT_EQ(program.exit_code(), 0) << program.err() << program.out();
  expect_steps(read_steps(folder.path() + "/out"), golden["steps"]);
  expect_weights(folder.path() + "/out/model/model.safetensors", golden["final_weights"]);
}

// All micro-batches have the same number of tokens, so both means are equal. Gradients are divided by the tokens before
// the sum over ranks, or in it, or, for experts, by one rank of two.
constexpr const char *kByTokens = "calculate_per_token_loss: true\n", *kByBatches = "calculate_per_token_loss: false\n",
                     *kInSum = "calculate_per_token_loss: false\nddp_average_in_collective: true\n";

INSTANTIATE_TEST_SUITE_P(Models, TrainsExpertsLikeTransformers,
                         ::testing::Values(std::tuple{"experts", kByTokens}, std::tuple{"experts", kByBatches},
                                           std::tuple{"latents", kByTokens}, std::tuple{"latents", kInSum}),
                         [](const auto& run) {
                           const char* average = std::get<1>(run.param);
                           return std::get<0>(run.param) + std::string(average == kByTokens    ? "ByTokens"
                                                                       : average == kByBatches ? "ByBatches"
                                                                                               : "InTheSum");
                         });

// --------------------------------------------------------------------------------------- one run compared with another

// Both runs use the same samples in every step.
class TwoRuns : public ::testing::Test {
 protected:
  // Runs four steps of the model with |configuration| (YAML) on |world| ranks. |name| is its folder.
  std::vector<json> train(const std::string& name, int world, const std::string& configuration) {
    std::ofstream(path(name + ".yaml")) << "model: " << kTinyModel << "\nshuffle: false\nmax_steps: 4\n"
                                        << "learning_rate: 1e-3\nlogging_steps: 1\nreport_to: [none]\ntrain_data: "
                                        << path("data.jsonl") << "\noutput_dir: " << path(name) << "\n"
                                        << configuration;
    TrainProgram program({"--config", path(name + ".yaml"), "--nproc", std::to_string(world)});
    EXPECT_EQ(program.exit_code(), 0) << program.err() << program.out();
    std::vector<json> steps = read_steps(path(name));
    EXPECT_EQ(steps.size(), 4u);
    return steps;
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  TemporaryFolder folder_;
};

void expect_close(const std::vector<json>& got, const std::vector<json>& wanted, double loss, double norm) {
  for (size_t i = 0; i < std::min(got.size(), wanted.size()); ++i) {
    EXPECT_NEAR(got[i]["loss"].get<double>(), wanted[i]["loss"].get<double>(), loss) << "step " << i + 1;
    const double size = wanted[i]["grad_norm"].get<double>();
    EXPECT_NEAR(got[i]["grad_norm"].get<double>(), size, norm * size) << "step " << i + 1;
  }
}

struct Half {
  const char* name;
  const char* dtype;  // type of the saved weights
  int bits;           // bits of the significand
  int world;
  const char* configuration;
};

void PrintTo(const Half& half, std::ostream* out) { *out << half.name; }

class TrainsInHalfPrecision : public TwoRuns, public ::testing::WithParamInterface<Half> {};

// Compared with float32. A logit is rounded once by the embedding, five times by each of the eight branches of four
// layers (norm, two products, the activation, the sum) and twice by the last norm and the head: 43 times, each by at
// most u = 2^-bits of its size, which is about 1 here, and independently. So its error is about sqrt(43) u, and that of
// the mean over the tokens is less; the rest of the bound is for the weights, which drift apart over the steps.
// Gradients are rounded as often again in backward.
TEST_P(TrainsInHalfPrecision, WithinItsRounding) {
  const Half& half = GetParam();
  write_jsonl(path("data.jsonl"), 8);
  const std::string rows = fmt::format("per_device_train_batch_size: {}\n", 2 / half.world);
  const std::vector<json> whole = train("whole", half.world, rows);
  const std::vector<json> got = train("half", half.world, rows + half.configuration);
  const double logit = std::sqrt(43) * std::ldexp(1, -half.bits);
  expect_close(got, whole, logit, std::sqrt(2) * logit);
  EXPECT_GT(std::abs(got[0]["loss"].get<double>() - whole[0]["loss"].get<double>()), 1e-6) << "that was float32";
  const safetensors::Reader saved(path("half/model/model.safetensors"));
  for (const safetensors::TensorInfo& info : saved.tensors()) {
    EXPECT_STREQ(safetensors::to_string(info.dtype), half.dtype) << info.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, TrainsInHalfPrecision,
                         ::testing::Values(Half{"Bf16Dp2", "BF16", 8, 2,
                                                "bf16: true\nuse_distributed_optimizer: true\n"},
                                           Half{"Fp16", "F16", 11, 1, "fp16: true\ninitial_loss_scale: 64\n"}),
                         [](const auto& half) { return half.param.name; });

// Alternating samples of 20 and 12 tokens, so that first fit fills every row of 32 with two.
void write_pairs(const std::string& path, int pairs) {
  std::ofstream file(path);
  for (int i = 0; i < 2 * pairs; ++i) {
    file << "{\"input_ids\": [";
    for (int t = 0; t < (i % 2 == 0 ? 20 : 12); ++t) file << (t > 0 ? ", " : "") << (i * 31 + t * t * 7) % 300;
    file << "]}\n";
  }
}

class TrainsPacked : public TwoRuns, public ::testing::WithParamInterface<Layout> {};

// Two samples per row, or one: the mean over their tokens is the same.
TEST_P(TrainsPacked, LikeARowPerSample) {
  write_pairs(path("data.jsonl"), 8);
  const std::string layout = std::string("seq_length: 32\n") + GetParam().arguments;
  const std::vector<json> apart = train("apart", GetParam().world, layout + "per_device_train_batch_size: 4\n");
  const std::vector<json> packed =
      train("packed", GetParam().world, layout + "per_device_train_batch_size: 2\nsequence_packing: true\n");
  expect_close(packed, apart, kLoss, kNorm);
}

INSTANTIATE_TEST_SUITE_P(Layouts, TrainsPacked,
                         ::testing::Values(Layout{"One", 1, 1, 1, ""},
                                           Layout{"Cp2", 2, 1, 1, "context_parallel_size: 2\n"}),
                         [](const auto& layout) { return layout.param.name; });

}  // namespace
}  // namespace concord::testing_processes
