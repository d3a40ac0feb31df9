#include "core/checkpoint/hf_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/util/Float8_e4m3fn.h>
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <array>
#include <fstream>

#include "core/base/config_error.h"
#include "core/checkpoint/hf_dtype.h"
#include "core/checkpoint/testing/sample_parameters.h"

namespace concord {
namespace {

using safetensors::DType;
using safetensors::TensorShape;
using safetensors::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SampleParameters;

std::string words_of(const std::string& folder, const SampleParameters& sample, const HfLoadOptions& options = {}) {
  return safetensors::testing::message_of<ConfigError>(
      [&] { load_hf_weights(folder, sample.list, ShardPlace{}, options); });
}

// Every element of the rank must be the one of the file at its global address; the rest is padding, 0.
void expect_loaded(const Parameter& parameter, const ShardPlace& place) {
  const at::Tensor value = parameter.value.detach().view({-1}).to(at::kFloat);
  const float* data = value.const_data_ptr<float>();
  std::vector<float> expected(static_cast<size_t>(value.numel()), 0.0f);
  for (const ShardRun& run : shard_runs(parameter.spec, place)) {
    for (int64_t i = 0; i < run.count; ++i)
      expected[static_cast<size_t>(run.local + i)] =
          testing::sample_value(run.tensor, run.offset + i / run.run_length * run.run_stride + i % run.run_length);
  }
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(data[i], expected[i]) << parameter.spec.name << " at " << i;
}

TEST(HfWeights, OfEveryRankOfEveryLayoutAreItsElementsOfTheFile) {
  const TemporaryFolder folder;
  const std::vector<ShardSpec> specs = testing::stage_specs(0, 1);
  testing::write_sample(folder / "model.safetensors", specs);
  for (const ParallelSizes& sizes :
       {ParallelSizes{.world = 1}, ParallelSizes{.world = 2, .tensor = 2}, ParallelSizes{.world = 4, .tensor = 4},
        ParallelSizes{.world = 8, .tensor = 2, .expert = 4, .expert_tensor = 1}}) {
    const RankLayout layout(sizes);
    for (int64_t rank = 0; rank < layout.world(); ++rank) {
      const ShardPlace place = shard_place(layout, rank);
      const SampleParameters sample(specs, place);
      load_hf_weights(folder.path(), sample.list, place);
      for (const Parameter& parameter : sample.parameters) expect_loaded(parameter, place);
    }
  }
}

// Writes a file of one tensor "w" [6, 10] of numbers that fp16 and bf16 have to round, misaligned by |shift| bytes.
at::Tensor write_one(const std::string& path, at::ScalarType type, size_t shift) {
  const at::Tensor values = at::arange(60, at::kDouble).mul(0.3712).sub(7).view({6, 10}).to(type);
  const std::string text = to_string(*file_type(type));
  const size_t bytes = static_cast<size_t>(values.numel() * values.element_size());
  std::string json =
      R"({"w":{"dtype":")" + text + R"(","shape":[6,10],"data_offsets":[0,)" + std::to_string(bytes) + "]}}";
  json.append(8 - json.size() % 8 + shift, ' ');
  safetensors::testing::write_file(
      path, safetensors::testing::file_of(json, {static_cast<const char*>(values.const_data_ptr()), bytes}));
  return values;
}

TEST(HfWeights, AreConvertedBetweenAllFloatTypesWhereverTheyLie) {
  const TemporaryFolder folder;
  const ShardSpec spec{.name = "w", .dims = {{6}, {10, ShardAxis::tp}}};
  const ShardPlace second{{{{2, 1}, {}, {}}}};
  for (const at::ScalarType from : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const size_t shift : {0, 1}) {
      const at::Tensor values = write_one(folder / "model.safetensors", from, shift);
      for (const at::ScalarType to : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
        const SampleParameters sample({spec}, second, to);
        load_hf_weights(folder.path(), sample.list, second);
        EXPECT_TRUE(sample.parameters[0].value.detach().equal(values.narrow(1, 5, 5).to(to)))
            << c10::toString(from) << " to " << c10::toString(to) << " shift " << shift;
      }
    }
  }
}

TEST(HfWeights, LargerThanAWindowAreCutWithoutLoss) {
  const TemporaryFolder folder;
  // 14 MB with rows of 20 KB, then 12 MB in one row: split by rows and by columns.
  const ShardSpec rows{.name = "rows", .dims = {{700}, {5000, ShardAxis::tp}}};
  const ShardSpec row{.name = "row", .dims = {{3'000'000}}};
  testing::write_sample(folder / "model.safetensors", {rows, row});
  for (const int64_t tp : {1, 2}) {
    const ShardPlace last{{{{tp, tp - 1}, {}, {}}}};
    const SampleParameters sample({rows, row}, last);
    load_hf_weights(folder.path(), sample.list, last);
    for (const Parameter& parameter : sample.parameters) expect_loaded(parameter, last);
  }
}

TEST(HfWeights, ThatAreMissingOrOfAnotherShapeOrTypeAreNamed) {
  const TemporaryFolder folder;
  const ShardSpec spec{.name = "w", .dims = {{6}, {10}}};
  const SampleParameters sample({spec}, ShardPlace{});
  const auto with = [&](const TensorShape& tensor) {
    safetensors::Writer writer(folder / "model.safetensors", {tensor});
    const std::vector<std::byte> bytes(writer.plan().tensors[0].bytes());
    writer.write(tensor.name, 0, bytes);
    writer.finish();
    return words_of(folder.path(), sample);
  };
  EXPECT_THAT(with({"v", DType::kF32, {6, 10}}),
              AllOf(HasSubstr(folder.path() + ": has no tensor 'w', which parameter w needs in shape [6, 10]")));
  EXPECT_THAT(with({"w", DType::kF32, {10, 6}}),
              HasSubstr("model.safetensors: tensor 'w' has shape [10, 6], but parameter w needs [6, 10]"));
  EXPECT_THAT(with({"w", DType::kI64, {6, 10}}), HasSubstr("tensor 'w' has type I64; parameter w, Float on this rank"));
  EXPECT_THAT(with({"w", DType::kF8E4M3, {6, 10}}), HasSubstr("has type F8_E4M3"));
  EXPECT_TRUE(sample.parameters[0].value.eq(777).all().item<bool>());
  EXPECT_EQ(with({"w", DType::kF32, {6, 10}}), "accepted");
}

// A weight of 6 x 10 in blocks of 4 x 8: 2 x 2 of them, of which all but the first are truncated.
TEST(HfWeights, InEightBitBlocksAreElementsTimesTheScaleOfTheirBlock) {
  const TemporaryFolder folder;
  const ShardSpec spec{.name = "w", .dims = {{6}, {10, ShardAxis::tp}}};
  const std::vector<int64_t> block{4, 8};
  std::vector<uint8_t> elements(60);
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<uint8_t>(i * 4);  // 0 to 0xec: no NaN
  const std::array<float, 4> scales{1, 0.1f, 3e-5f, 448};
  safetensors::Writer writer(folder / "model.safetensors",
                             {{"w", DType::kF8E4M3, {6, 10}}, {"w_scale_inv", DType::kF32, {2, 2}}});
  writer.write("w", 0, std::as_bytes(std::span(elements)));
  writer.write("w_scale_inv", 0, std::as_bytes(std::span(scales)));
  writer.finish();
  const std::vector<std::string> names = {"w"};
  for (int64_t rank = 0; rank < 2; ++rank) {
    const ShardPlace place = shard_place(RankLayout(ParallelSizes{.world = 2, .tensor = 2}), rank);
    const SampleParameters sample({spec}, place);
    load_hf_weights(folder.path(), sample.list, place, {.model_tensors = names, .weight_block_size = block});
    const at::Tensor value = sample.parameters[0].value.detach();
    for (int64_t row = 0; row < 6; ++row) {
      for (int64_t column = 0; column < 5; ++column) {
        const int64_t whole = 5 * rank + column;
        const auto element =
            c10::Float8_e4m3fn(elements[static_cast<size_t>(row * 10 + whole)], c10::Float8_e4m3fn::from_bits());
        EXPECT_EQ(value[row][column].item<float>(),
                  static_cast<float>(element) * scales[static_cast<size_t>(row / 4 * 2 + whole / 8)]);
      }
    }
  }
}

TEST(HfWeights, InEightBitBlocksAreRefusedWithoutScalesThatFit) {
  const TemporaryFolder folder;
  const ShardSpec matrix{.name = "w", .dims = {{6}, {10}}}, row{.name = "w", .dims = {{60}}};
  const std::vector<int64_t> block{4, 8};
  const std::vector<std::string> names = {"w"};
  const auto with = [&](const ShardSpec& spec, const std::vector<TensorShape>& tensors) {
    safetensors::Writer writer(folder / "model.safetensors", tensors);
    for (const auto& tensor : writer.plan().tensors)
      writer.write(tensor.name, 0, std::vector<std::byte>(tensor.bytes()));
    writer.finish();
    const SampleParameters sample({spec}, ShardPlace{});
    return words_of(folder.path(), sample, {.model_tensors = names, .weight_block_size = block});
  };
  const TensorShape weight{"w", DType::kF8E4M3, {6, 10}};
  EXPECT_EQ(with(matrix, {weight, {"w_scale_inv", DType::kF32, {2, 2}}}), "accepted");
  EXPECT_THAT(with(matrix, {weight}), AllOf(HasSubstr("needs 'w_scale_inv' of [2, 2]"), HasSubstr("there is none")));
  EXPECT_THAT(with(matrix, {weight, {"w_scale_inv", DType::kF32, {1, 2}}}), HasSubstr("but it is [1, 2] in F32"));
  EXPECT_THAT(with(matrix, {weight, {"w_scale_inv", DType::kF32, {2, 2, 1}}}), HasSubstr("but it is [2, 2, 1] in F32"));
  EXPECT_THAT(with(matrix, {weight, {"w_scale_inv", DType::kI32, {2, 2}}}), HasSubstr("but it is [2, 2] in I32"));
  EXPECT_THAT(with(row, {{"w", DType::kF8E4M3, {60}}, {"w_scale_inv", DType::kF32, {15}}}),
              HasSubstr("which only matrices can have"));
  // Scales of a tensor that is not FP8 belong to no parameter.
  EXPECT_THAT(with(matrix, {{"w", DType::kF32, {6, 10}}, {"w_scale_inv", DType::kF32, {2, 2}}}),
              HasSubstr("'w_scale_inv' of [2, 2] does not belong to any parameter"));
  EXPECT_THAT(with(matrix, {weight, {"w_scale_inv", DType::kF32, {2, 2}}, {"v_scale_inv", DType::kF32, {2, 2}}}),
              HasSubstr("'v_scale_inv' of [2, 2] does not belong to any parameter"));
}

TEST(HfWeights, ThatNobodyNeedsAreNamedButForTheOnesThatMeanNothing) {
  const TemporaryFolder folder;
  const auto one = [](const std::string& name) { return ShardSpec{.name = name, .dims = {{4}}}; };
  const SampleParameters sample({one("w")}, ShardPlace{});
  const std::vector<std::string> names = {"w", "of.another.stage"};
  testing::write_sample(folder / "model.safetensors",
                        {one("w"), one("of.another.stage"), one("model.layers.0.self_attn.rotary_emb.inv_freq")});
  EXPECT_EQ(words_of(folder.path(), sample, {.model_tensors = names}), "accepted");
  testing::write_sample(folder / "model.safetensors", {one("w"), one("lm_head.weight")});
  EXPECT_THAT(
      words_of(folder.path(), sample, {.model_tensors = names}),
      HasSubstr("model.safetensors: tensor 'lm_head.weight' of [4] does not belong to any parameter of the model"));
  EXPECT_EQ(words_of(folder.path(), sample, {.model_tensors = names, .tied_embeddings = true}), "accepted");
  EXPECT_EQ(words_of(folder.path(), sample), "accepted");
  const std::vector<std::string> unused = {"model.layers.9.", "lm_head."};
  EXPECT_EQ(words_of(folder.path(), sample, {.model_tensors = names, .unused = unused}), "accepted");
}

TEST(HfWeights, RefuseAValueThatIsNotTheShard) {
  const TemporaryFolder folder;
  const ShardSpec spec{.name = "w", .dims = {{6}, {10}}};
  testing::write_sample(folder / "model.safetensors", {spec});
  SampleParameters sample({spec}, ShardPlace{});
  sample.parameters[0].value = at::full({10, 6}, 1.0);
  EXPECT_THAT(words_of(folder.path(), sample),
              HasSubstr("parameter w: the value must be a contiguous float tensor of [6, 10]"));
  sample.parameters[0].value = at::full({10, 6}, 1.0).t();
  EXPECT_THAT(words_of(folder.path(), sample), HasSubstr("contiguous"));
  sample.parameters[0].value = at::full({6, 10}, 1, at::kLong);
  EXPECT_THAT(words_of(folder.path(), sample), HasSubstr("but it is Long of [6, 10]"));
}

int64_t status_kib(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1));
  }
  return -1;
}

// Memory that was never accessed; an allocator may return cached memory.
class FreshMemory {
 public:
  explicit FreshMemory(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  ~FreshMemory() { munmap(data_, bytes_); }
  FreshMemory(const FreshMemory&) = delete;
  FreshMemory& operator=(const FreshMemory&) = delete;
  void* data() const { return data_; }

 private:
  size_t bytes_;
  void* data_;
};

// Large enough to be mapped: a plain weight, gate and up, which are adjacent in the file, and q, k, which are not.
std::vector<ShardSpec> mappable_specs() {
  ShardSpec gate_up{.name = "gate_up", .dims = {{512, ShardAxis::tp}, {256}}};
  gate_up.pieces = {{"mlp.gate", 256}, {"mlp.up", 256}};
  ShardSpec qk{.name = "qk", .dims = {{512, ShardAxis::tp}, {256}}};
  qk.pieces = {{"attn.q", 256}, {"attn.k", 256}};
  return {{.name = "down", .dims = {{512}, {512, ShardAxis::tp}}},
          gate_up,
          qk,
          {.name = "padded", .dims = {{500, ShardAxis::tp, 512}, {256}}},
          {.name = "small", .dims = {{8}, {8}}}};
}

void write_mappable(const std::string& path) {
  std::vector<ShardSpec> specs = mappable_specs();
  std::swap(specs[2].pieces[0], specs[2].pieces[1]);  // k before q, as the names are sorted in files
  testing::write_sample(path, specs);
}

// Returns the names of the parameters that moved; each must have the values of the file.
std::vector<std::string> mapped_by(const std::string& folder, const ShardPlace& place, at::ScalarType type) {
  const SampleParameters sample(mappable_specs(), place, type);
  std::vector<const void*> before;
  for (const Parameter& parameter : sample.parameters) before.push_back(parameter.value.data_ptr());
  load_hf_weights(folder, sample.list, place, {.map_files = true});
  std::vector<std::string> names;
  for (size_t i = 0; i < before.size(); ++i) {
    const Parameter& parameter = sample.parameters[i];
    expect_loaded(parameter, place);
    EXPECT_TRUE(parameter.value.requires_grad());
    if (parameter.value.data_ptr() != before[i]) names.push_back(parameter.spec.name);
  }
  return names;
}

TEST(HfWeights, StayInTheFileWhereTheyLieThereAsTheyAreNeeded) {
  const TemporaryFolder folder;
  write_mappable(folder / "model.safetensors");
  EXPECT_THAT(mapped_by(folder.path(), ShardPlace{}, at::kFloat), ::testing::ElementsAre("down", "gate_up"));
  EXPECT_THAT(mapped_by(folder.path(), ShardPlace{}, at::kDouble), ::testing::IsEmpty());
  // For the second of two ranks each piece is split separately, and so are the rows of "down".
  EXPECT_THAT(mapped_by(folder.path(), ShardPlace{{{{2, 1}, {}, {}}}}, at::kFloat), ::testing::IsEmpty());
}

TEST(HfWeights, ThatAreMappedCanBeWrittenAndTheFileStays) {
  const TemporaryFolder folder;
  write_mappable(folder / "model.safetensors");
  const SampleParameters first(mappable_specs(), ShardPlace{}), second(mappable_specs(), ShardPlace{});
  load_hf_weights(folder.path(), first.list, ShardPlace{}, {.map_files = true});
  {
    const at::NoGradGuard no_grad;
    for (const Parameter& parameter : first.parameters) parameter.value.fill_(3);
  }
  load_hf_weights(folder.path(), second.list, ShardPlace{}, {.map_files = true});
  for (const Parameter& parameter : second.parameters) expect_loaded(parameter, ShardPlace{});
  for (const Parameter& parameter : first.parameters) EXPECT_TRUE(parameter.value.eq(3).all().item<bool>());
}

// A file of 384 MB of which this rank holds every second half row: all pages of the file are accessed.
TEST(HfWeights, TakeNoMoreHostMemoryThanTheShardAnd64MiB) {
  const TemporaryFolder folder;
  constexpr int64_t kRows = 24 << 10, kColumns = 4 << 10;
  const ShardSpec spec{.name = "w", .dims = {{kRows}, {kColumns, ShardAxis::tp}}};
  {
    safetensors::Writer writer(folder / "model.safetensors", {{"w", DType::kF32, {kRows, kColumns}}});
    const std::vector<float> row(kColumns, 1.5f);
    for (uint64_t i = 0; i < kRows; ++i) writer.write("w", i * kColumns * 4, std::as_bytes(std::span(row)));
    writer.finish();
  }
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const FreshMemory memory(kRows * kColumns / 2 * c10::elementSize(type));
    Parameter parameter{
        .spec = spec, .init = constant_init(0), .value = at::from_blob(memory.data(), {kRows, kColumns / 2}, type)};
    Parameter* const list[] = {&parameter};
    const int64_t shard_kib = parameter.value.numel() * parameter.value.element_size() / 1024;
    std::ofstream("/proc/self/clear_refs") << 5;  // resets the peak
    const int64_t before = status_kib("VmRSS");
    load_hf_weights(folder.path(), list, ShardPlace{{{{2, 1}, {}, {}}}});
    const int64_t peak = status_kib("VmHWM") - before;
    EXPECT_GE(peak, shard_kib * 9 / 10) << "the measurement does not see the shard";
    EXPECT_LE(peak, shard_kib + 64 * 1024) << c10::toString(type);
    RecordProperty("beyond_the_shard_kib", std::to_string(peak - shard_kib));
    EXPECT_TRUE(parameter.value.eq(1.5).all().item<bool>());
  }
}

}  // namespace
}  // namespace concord
