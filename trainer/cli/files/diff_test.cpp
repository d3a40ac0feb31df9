#include "trainer/cli/files/diff.h"

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/safetensors/testing/files.h"
#include "core/safetensors/writer.h"

namespace concord {
namespace {

using nlohmann::json;
using safetensors::DType;
using safetensors::TensorShape;
using safetensors::Writer;
using safetensors::testing::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Tensors = std::vector<std::pair<std::string, std::vector<float>>>;

void write(const std::string& path, const Tensors& tensors) {
  std::vector<TensorShape> shapes;
  for (const auto& [name, values] : tensors)
    shapes.push_back({name, DType::kF32, {static_cast<int64_t>(values.size()) / 2, 2}});
  Writer writer(path, shapes);
  for (const auto& [name, values] : tensors) writer.write(name, 0, std::as_bytes(std::span(values)));
  writer.finish();
}

struct Ended {
  int code = -1;
  std::string output;  // standard output and error
};

Ended diff(const std::string& arguments) {
  FILE* pipe = popen(("'" DIFF_PROGRAM "' diff " + arguments + " 2>&1").c_str(), "r");
  Ended run;
  std::array<char, 4096> piece{};
  while (const size_t length = fread(piece.data(), 1, piece.size(), pipe)) run.output.append(piece.data(), length);
  const int status = pclose(pipe);
  run.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

class Diff : public ::testing::Test {
 protected:
  Ended between(const Tensors& a, const Tensors& b, const std::string& options = "") const {
    write(folder_ / "a.safetensors", a);
    write(folder_ / "b.safetensors", b);
    return diff(folder_ / "a.safetensors" + " " + folder_ / "b.safetensors" + " " + options);
  }
  TemporaryFolder folder_;
};

TEST_F(Diff, EndsWith0WhereAllTensorsAgree) {
  const Ended same = between({{"w", {1, 2, 3, 4}}}, {{"w", {1, 2, 3, 4}}});
  EXPECT_EQ(same.code, 0) << same.output;
  EXPECT_THAT(same.output, HasSubstr("1 tensors: 1 identical (rtol 0, atol 0)"));
  const Ended near = between({{"w", {1, 2, 3, 4}}}, {{"w", {1, 2, 3.5, 4}}}, "--atol 0.5");
  EXPECT_EQ(near.code, 0) << near.output;
  EXPECT_THAT(near.output, HasSubstr("1 within tolerance"));
}

TEST_F(Diff, ShowsWhereTheDifferencesAre) {
  const Ended run = between({{"same", {1, 2}}, {"w", {1, 2, 3, 4}}, {"a_only", {0, 0}}},
                            {{"same", {1, 2}}, {"w", {1, 2, 2, 4}}, {"b_only", {0, 0}}}, "--rtol 0.25");
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.output, ::testing::ContainsRegex("w +1 +\\[1, 0\\] +3 +2 +0.5 +0.2 +2 +differs in 1 of 4"));
  EXPECT_THAT(run.output, AllOf(HasSubstr("only in A: F32 [1, 2] vs none"), HasSubstr("only in B: none vs F32")));
  EXPECT_THAT(run.output, HasSubstr("4 tensors: 1 differs, 1 identical, 1 only in A, 1 only in B"));
  EXPECT_THAT(run.output, HasSubstr("first difference: a_only"));
  EXPECT_THAT(run.output, Not(HasSubstr("same")));
}

TEST_F(Diff, NamesTheFirstDifferingLayerInTheOrderOfTheModel) {
  const Tensors a = {{"activation.0.embedding", {1, 1}},
                     {"activation.2.layers.1", {1, 1}},
                     {"activation.10.norm", {1, 1}},
                     {"a.weight", {1, 1}}};
  Tensors b = a;
  b[1].second[0] = b[2].second[1] = b[3].second[0] = 2;
  EXPECT_THAT(between(a, b).output, HasSubstr("first differing layer: layers.1 (output 2 of the model)"));
}

TEST_F(Diff, PrintsOneJsonDocument) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Ended run =
      between({{"w", {1, 2, 3, nan}}, {"x", {1, 1}}}, {{"w", {1, 2, 2, 4}}, {"y", {1, 1}}}, "--json --atol 0.5");
  EXPECT_EQ(run.code, 1);
  const json document = json::parse(run.output);
  EXPECT_EQ(document.at("agrees"), false);
  EXPECT_EQ(document.at("first_difference"), "w");
  EXPECT_EQ(document.at("atol"), 0.5);
  EXPECT_EQ(document.at("counts"), (json{{"differs", 1}, {"only in A", 1}, {"only in B", 1}}));
  const json& w = document.at("tensors").at(0);
  EXPECT_EQ(w.at("outcome"), "differs");
  EXPECT_EQ(w.at("max_abs"), "inf");
  EXPECT_EQ(w.at("max_abs_at"), (json{1, 1}));
  EXPECT_EQ(w.at("a"), "nan");
  EXPECT_EQ(w.at("b"), 4);
  EXPECT_EQ(w.at("nan_in_one"), 1);
  EXPECT_EQ(w.at("beyond"), 2);
  EXPECT_EQ(document.at("tensors").at(1).at("shape_b"), nullptr);
  EXPECT_EQ(document.at("tensors").at(1).at("max_abs"), nullptr);
}

TEST_F(Diff, TakesFoldersWithAnIndex) {
  write(folder_ / "1.safetensors", {{"a", {1, 2}}});
  write(folder_ / "2.safetensors", {{"b", {3, 4}}});
  safetensors::testing::write_file(folder_ / safetensors::kIndexFile,
                                   safetensors::index_json({{"a", "1.safetensors"}, {"b", "2.safetensors"}}, 16));
  write(folder_ / "both", {{"a", {1, 2}}, {"b", {3, 4}}});
  const Ended run = diff(folder_.path() + " " + folder_ / "both");
  EXPECT_EQ(run.code, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("2 tensors: 2 identical"));
}

TEST_F(Diff, CountsTypesUnlessOnlyValuesMatter) {
  write(folder_ / "b.safetensors", {{"w", {1, 2}}});
  Writer writer(folder_ / "a.safetensors", {{"w", DType::kBF16, {1, 2}}});
  const uint16_t values[] = {0x3f80, 0x4000};
  writer.write("w", 0, std::as_bytes(std::span(values)));
  writer.finish();
  const std::string both = folder_ / "a.safetensors" + " " + folder_ / "b.safetensors";
  const Ended strict = diff(both);
  EXPECT_EQ(strict.code, 1);
  EXPECT_THAT(strict.output, HasSubstr("other type: BF16 [1, 2] vs F32 [1, 2]"));
  EXPECT_EQ(diff(both + " --any_dtype").code, 0);
  EXPECT_EQ(diff(both + " --any-dtype").code, 0);
}

TEST_F(Diff, EndsWith2WhereItCannotCompare) {
  write(folder_ / "a.safetensors", {{"w", {1, 2}}});
  const Ended missing = diff(folder_ / "a.safetensors" + " " + folder_ / "none");
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.output, HasSubstr("none: cannot be opened"));
  EXPECT_EQ(diff(folder_ / "a.safetensors").code, 2);
  const Ended negative = between({{"w", {1, 2}}}, {{"w", {1, 2}}}, "--atol -1");
  EXPECT_EQ(negative.code, 2);
  EXPECT_THAT(negative.output, HasSubstr("invalid tolerance -1"));
  EXPECT_EQ(between({{"w", {1, 2}}}, {{"w", {1, 2}}}, "--rtol nan").code, 2);
}

}  // namespace
}  // namespace concord
