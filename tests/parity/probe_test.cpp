// The program itself: `concord probe` with layouts, compared with transformers' numbers and with itself.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <sys/wait.h>

#include "tests/parity/hf_golden.h"
#include "tests/processes/running_process.h"

namespace concord::tests {
namespace {

using ::testing::HasSubstr;
using testing_processes::RunningProcess;

struct Ended {
  int code;
  std::string out, err;
};

Ended run_probe(std::vector<std::string> words) {
  words.insert(words.begin(), {PROBE_PROGRAM, "probe"});
  RunningProcess process(words, {.environment = {"CONCORD_LOG=warn", "OMP_NUM_THREADS=1"}});
  const int status = process.wait();
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, process.out(), process.err()};
}

// Returns the dump of a probe, which must succeed.
TensorMap dump_of(std::vector<std::string> words, const TemporaryFolder& folder) {
  const std::string out = folder.path() + "/dump.safetensors";
  words.insert(words.end(), {"--out", out, "--overwrite"});
  const Ended ended = run_probe(words);
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  return ended.code == 0 ? read_tensors(out) : TensorMap();
}

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const std::vector<std::string> kTp2Cp2{
    "--nproc", "4", "--tensor_model_parallel_size", "2", "--context-parallel-size=2", "--sequence_parallel"};
const std::vector<std::string> kTp2Pp2{
    "--nproc", "4", "--tensor_model_parallel_size", "2", "--pipeline_model_parallel_size", "2"};

TEST(Probe, DumpsWhatTransformersComputes) {
  const TemporaryFolder folder;
  for (const char* model : {"qwen2-tied", "qwen2-tiny"}) {
    const std::string batch = (golden("hf") / model / "expected.safetensors").string();
    const std::vector<std::string> words{"--model", (golden("hf") / model).string(), "--batch", batch, "--grads"};
    const TensorMap expected = read_tensors(batch);
    for (const auto& how : {std::vector<std::string>{}, kTp2Cp2, kTp2Pp2}) {
      const TensorMap result = dump_of(with(words, how), folder);
      ASSERT_FALSE(result.empty());
      expect_parity(result, expected);
    }
  }
}

TEST(Probe, TakesPackedSequences) {
  const TemporaryFolder folder;
  const std::string batch = golden("packing/expected.safetensors").string();
  const TensorMap result =
      dump_of({"--model", golden("hf/qwen2-tiny-sharded").string(), "--batch", batch, "--grads"}, folder);
  ASSERT_FALSE(result.empty());
  const TensorMap expected = read_tensors(batch);
  expect_parity(result, expected);
  EXPECT_LE((result.at("per_token_loss") - expected.at("per_token_loss")).abs().max().item<double>(), 2e-5);
}

void expect_same_bits(const TensorMap& a, const TensorMap& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
  }
}

TEST(Probe, FreshWeightsAreTheSameBitsUnderEveryLayout) {
  const TemporaryFolder folder;
  const auto weights = [&](const char* dtype, const std::vector<std::string>& layout) {
    return dump_of(with({"--model_config", golden("hf/qwen2-tied/config.json").string(), "--weights", "--seed", "7",
                         "--dtype", dtype},
                        layout),
                   folder);
  };
  for (const char* dtype : {"float32", "bfloat16"}) {
    const TensorMap whole = weights(dtype, {});
    ASSERT_FALSE(whole.empty());
    EXPECT_NEAR(whole.at("weight.model.embed_tokens.weight").to(at::kDouble).std().item<double>(), 0.1, 0.002);
    EXPECT_TRUE(whole.at("weight.model.norm.weight").eq(1).all().item<bool>());
    EXPECT_TRUE(whole.at("weight.model.layers.1.self_attn.k_proj.bias").eq(0).all().item<bool>());
    for (const char* tp : {"2", "4"}) {
      expect_same_bits(whole, weights(dtype, {"--nproc", tp, "--tensor_model_parallel_size", tp}));
    }
    expect_same_bits(whole, weights(dtype, kTp2Pp2));
  }
}

TEST(Probe, ActivationsOfEveryPartAreNumberedInTheirOrder) {
  const TemporaryFolder folder;
  const std::vector<std::string> words{"--model", golden("hf/llama-tiny").string(), "--batch",
                                       golden("hf/llama-tiny/expected.safetensors").string(), "--dump_activations"};
  const TensorMap one = dump_of(words, folder);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : one) {
    if (name.starts_with("activation.")) names.push_back(name);
  }
  EXPECT_THAT(names, ::testing::ElementsAre("activation.000000.embedding", "activation.000001.layers.0",
                                            "activation.000002.layers.1", "activation.000003.norm"));
  for (const auto& layout : {kTp2Cp2, kTp2Pp2}) {
    const TensorMap cut = dump_of(with(words, layout), folder);
    ASSERT_EQ(cut.size(), one.size());
    for (const auto& [name, tensor] : one) {
      EXPECT_LE((cut.at(name) - tensor).abs().max().item<double>(), 2e-5) << name;
    }
  }
}

TEST(Probe, RefusesWhatCannotBeMeantBeforeAnyProcessStarts) {
  const TemporaryFolder folder;
  const std::string model = golden("hf/llama-tiny").string();
  const std::string batch = golden("hf/llama-tiny/expected.safetensors").string();
  const std::string out = folder.path() + "/x.safetensors";
  const auto expect = [&](const std::vector<std::string>& words, const std::string& said) {
    const Ended ended = run_probe(with({"--out", out}, words));
    EXPECT_EQ(ended.code, 2) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(said));
  };
  expect({"--batch", batch}, "either --model DIR");
  expect({"--model", model}, "--batch FILE");
  expect({"--model", model, "--batch", batch, "--dtype", "int8"}, "float32, bfloat16");
  expect({"--model", model, "--batch", folder.path() + "/none"}, folder.path() + "/none");
  expect({"--model", folder.path(), "--batch", batch}, "config.json");
  expect({"--model", model, "--batch", batch, "--nproc", "8", "--tensor_model_parallel_size", "8"},
         "num_attention_heads 4 is not divisible by tensor_model_parallel_size 8");
  expect({"--model", model, "--batch", batch, "--nproc", "2", "--tensor_model_parallel_size", "3"}, "3");
  EXPECT_FALSE(std::filesystem::exists(out));
}

}  // namespace
}  // namespace concord::tests
