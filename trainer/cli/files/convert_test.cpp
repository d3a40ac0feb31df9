// `concord convert` through the program. tests/parity/convert.py compares the values with torch.
#include "trainer/cli/files/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "core/models/convert.h"
#include "core/safetensors/index.h"
#include "core/safetensors/testing/files.h"
#include "tests/processes/running_process.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using safetensors::DType;
using safetensors::testing::read_file;
using safetensors::testing::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_processes::RunningProcess;

class Convert : public ::testing::Test {
 protected:
  Convert() {
    fs::create_directory(path("model"));
    for (const char* name : {"model.safetensors", "config.json", "generation_config.json"}) {
      fs::copy_file(fs::path(CONCORD_GOLDEN "/hf/qwen2-tiny") / name, path("model") + "/" + name);
    }
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "vocab.json", "chat_template.jinja"})
      write_file(path("model") + "/" + name, name);
    for (const char* name : {"metadata.json", "manifest.json", "optimizer.safetensors", "notes.txt"})
      write_file(path("model") + "/" + name, "not for the new folder");
  }

  std::string path(const std::string& name) const { return folder_ / name; }

  struct Ended {
    int code;
    std::string out, err;
  };
  Ended convert(const std::string& from, const std::string& to, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {CONCORD_PROGRAM, "convert", "--from", path(from), "--to", path(to)});
    RunningProcess process(more);
    const int status = process.wait();
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, process.out(), process.err()};
  }

  std::vector<std::string> names_in(const std::string& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path(folder))) names.push_back(entry.path().filename().string());
    return names;
  }

  tests::TemporaryFolder folder_;
};

TEST_F(Convert, WithoutATypeCopiesTheTensorsAndTheFilesOfAModel) {
  const Ended ended = convert("model", "new/deep/");
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(names_in("new/deep"), ::testing::UnorderedElementsAre(
                                        "model.safetensors", "config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json", "vocab.json", "chat_template.jinja"));
  EXPECT_THAT(names_in("new"), ::testing::ElementsAre("deep"));
  for (const char* name : {"config.json", "vocab.json"}) {
    EXPECT_EQ(read_file(path("new/deep") + "/" + name), read_file(path("model") + "/" + name));
  }
  const safetensors::Weights before(path("model")), after(path("new/deep"));
  ASSERT_EQ(after.tensors().size(), before.tensors().size());
  for (const auto& [name, tensor] : before.tensors()) {
    const auto* copy = after.find(name);
    ASSERT_NE(copy, nullptr) << name;
    EXPECT_EQ(copy->info->shape, tensor.info->shape);
    EXPECT_TRUE(std::ranges::equal(copy->file->data(*copy->info), tensor.file->data(*tensor.info))) << name;
  }
}

TEST_F(Convert, DividesTheWeightsIntoFilesWithAnIndex) {
  const Ended ended = convert("model", "new", {"--max_shard_size", "20KB", "--json"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const json answer = json::parse(ended.out);
  EXPECT_GT(answer["files"], 2);
  const safetensors::Weights after(path("new"));
  EXPECT_EQ(after.files().size(), answer["files"]);
  EXPECT_EQ(after.tensors().size(), answer["tensors"]);
  EXPECT_TRUE(fs::exists(path("new/model.safetensors.index.json")));
}

TEST_F(Convert, RefusesWhatWouldLoseSomething) {
  fs::create_directory(path("full"));
  write_file(path("full/a"), "mine");
  EXPECT_THAT(convert("model", "full").err, HasSubstr("already exists"));
  EXPECT_THAT(convert("model", "model").err, HasSubstr("lies in"));
  EXPECT_THAT(convert("model", "model/new").err, HasSubstr("lies in"));
  EXPECT_THAT(convert("model", "nothing/../model/new").err, HasSubstr("lies in"));
  fs::create_directory_symlink(path("model"), path("link"));
  EXPECT_THAT(convert("model", "link/new").err, HasSubstr("lies in"));
  fs::create_symlink("nowhere", path("dangling"));
  EXPECT_THAT(convert("model", "dangling").err, HasSubstr("already exists"));
  for (const char* to : {"full", "model", "model/new", "link/new", "dangling"}) EXPECT_EQ(convert("model", to).code, 2);
  fs::create_directory(path("empty"));
  EXPECT_EQ(convert("model", "empty").code, 0) << "nothing is lost";
  EXPECT_EQ(convert("model", "model-next-to-it").code, 0) << "a longer name is another folder";
}

TEST_F(Convert, RefusesAModelWhoseFilesCannotBeCopied) {
  fs::create_directory(path("model/tokenizer_backup"));
  EXPECT_EQ(convert("model", "first").code, 0) << "a folder is not a file of the model";
  for (const char* name : {"config.json", "tokenizer.json"}) {
    const std::string file = path("model") + "/" + name;
    fs::rename(file, path("kept"));
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    const Ended ended = convert("model", "new");
    EXPECT_EQ(ended.code, 2);
    EXPECT_THAT(ended.err, AllOf(HasSubstr(name), HasSubstr("is not a regular file but a pipe")));
    EXPECT_FALSE(fs::exists(path("new")));
    fs::rename(path("kept"), file);
  }
}

TEST_F(Convert, SaysWhatIsWrongWithTheArguments) {
  EXPECT_THAT(convert("model", "new", {"--dtype", "fp8"}).err,
              AllOf(HasSubstr("'fp8'"), HasSubstr("float32, bfloat16 or float16")));
  EXPECT_EQ(convert("model", "new", {"--dtype", "fp8"}).code, 2);
  EXPECT_THAT(convert("model", "new", {"--max_shard_size", "5XB"}).err, HasSubstr("'5XB'"));
  EXPECT_EQ(convert("nowhere", "new").code, 2);
  fs::create_directory(path("empty"));
  EXPECT_EQ(convert("empty", "new").code, 2);
  write_file(path("model/config.json"), "[]");
  const Ended ended = convert("model", "new", {"--dtype", "float16"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr("config.json: is not a JSON object"));
  EXPECT_THAT(names_in(""), ::testing::UnorderedElementsAre("model", "empty")) << "nothing is left behind";
}

// Twice what is free, as a sparse file.
TEST_F(Convert, ADiskThatIsTooSmallIsAnErrorBeforeAnythingIsWritten) {
  const uint64_t elements = fs::space(folder_.path()).available / 2;
  const std::string size = std::to_string(elements), bytes = std::to_string(elements * 4);
  const std::string file = path("model/model.safetensors");
  const std::string head = R"({"w":{"dtype":"F32","shape":[)" + size + R"(],"data_offsets":[0,)" + bytes + "]}}";
  write_file(file, safetensors::testing::file_of(head, ""));
  std::error_code error;
  fs::resize_file(file, fs::file_size(file) + elements * 4, error);
  if (error) GTEST_SKIP() << "no sparse file of " << bytes << " bytes: " << error.message();
  const Ended ended = convert("model", "new");
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("new: needs "), HasSubstr("are free there")));
  EXPECT_THAT(names_in(""), ::testing::ElementsAre("model"));
}

TEST(ParseSize, TakesTheUnitsOfTransformers) {
  EXPECT_EQ(parse_size("5GB"), 5'000'000'000);
  EXPECT_EQ(parse_size("1.5 MB"), 1'500'000);
  EXPECT_EQ(parse_size("2GiB"), int64_t{2} << 30);
  EXPECT_EQ(parse_size("123"), 123);
  for (const char* text : {"", "GB", "-1GB", "0", "nan", "inf", "1e40", "5 G B", "5GBs"}) {
    EXPECT_THROW(parse_size(text), ConfigError) << text;
  }
}

// --------------------------------------------------------------------------------------------------------------- merge

// The checksums of golden/README.md.
std::array<double, 3> checksums(const safetensors::Weights::Tensor& tensor) {
  const auto* values = reinterpret_cast<const float*>(tensor.file->data(*tensor.info).data());
  std::array<double, 3> sums{};
  for (int64_t i = 0; i < tensor.info->elements(); ++i) {
    const double value = values[i];
    sums[0] += value;
    sums[1] += value * value;
    sums[2] += value * static_cast<double>(i % 251) / 251;
  }
  return sums;
}

class Merge : public Convert {
 protected:
  Merge() { fs::copy(CONCORD_GOLDEN "/lora", path("adapter")); }
  Ended merge(const std::string& model, const std::string& adapter, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {CONCORD_PROGRAM, "merge", "--adapter", path(adapter), "--out", path("merged")};
    if (!model.empty()) words.insert(words.end(), {"--model", path(model)});
    words.insert(words.end(), more.begin(), more.end());
    RunningProcess process(words);
    const int status = process.wait();
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, process.out(), process.err()};
  }
};

// A sum of n elements is off by at most their number times the rounding of one, 2^-24 of elements below 4 here.
TEST_F(Merge, GivesTheWeightsThatPeftGives) {
  const Ended ended = merge("model", "adapter", {"--json"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(json::parse(ended.out)["changed"], 28);
  const safetensors::Weights merged(path("merged")), base(path("model"));
  const json golden = json::parse(read_file(CONCORD_GOLDEN "/lora/merged_checksums.json"));
  ASSERT_EQ(merged.tensors().size(), golden.size());
  for (const auto& [name, wanted] : golden.items()) {
    const safetensors::Weights::Tensor* tensor = merged.find(name);
    ASSERT_NE(tensor, nullptr) << name;
    const auto [sum, squares, ramp] = checksums(*tensor);
    const double rounding = static_cast<double>(tensor->info->elements()) * 4 * 0x1p-24;
    EXPECT_NEAR(sum, wanted["sum"].get<double>(), rounding) << name;
    EXPECT_NEAR(squares, wanted["sumsq"].get<double>(), 8 * rounding) << name;
    EXPECT_NEAR(ramp, wanted["ramp"].get<double>(), rounding) << name;
    EXPECT_EQ(checksums(*base.find(name)) != checksums(*tensor), name.find("_proj.weight") != std::string::npos)
        << name;
  }
}

TEST_F(Merge, RefusesWhatDoesNotFit) {
  EXPECT_THAT(merge("", "adapter").err,
              AllOf(HasSubstr("base_model_name_or_path 'hf/qwen2-tiny' is not a folder here")));
  EXPECT_THAT(merge("model", "model").err, HasSubstr("neither adapter_model.safetensors nor"));
  EXPECT_THAT(convert("adapter", "new").err, HasSubstr("concord merge --adapter"));
  const std::string config = read_file(path("adapter/adapter_config.json"));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = config;
    changed.replace(changed.find(from), from.size(), to);
    write_file(path("adapter/adapter_config.json"), changed);
    return merge("model", "adapter").err;
  };
  EXPECT_THAT(with("\"r\": 4", "\"r\": 5"), HasSubstr("do not have the rank 5"));
  EXPECT_THAT(with("\"q_proj\",", ""), AllOf(HasSubstr("q_proj.lora_A.weight"), HasSubstr("is not a target")));
  EXPECT_FALSE(fs::exists(path("merged")));
  write_file(path("adapter/adapter_config.json"), config);
  fs::remove(path("model/model.safetensors"));
  fs::copy_file(CONCORD_GOLDEN "/hf/qwen3-tiny/model.safetensors", path("model/model.safetensors"));
  EXPECT_THAT(merge("model", "adapter").err, HasSubstr("is it the adapter of another model?"));
}

}  // namespace
}  // namespace concord
