#include "core/safetensors/compare.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "core/safetensors/testing/files.h"
#include "core/safetensors/writer.h"

namespace concord::safetensors {
namespace {

using ::testing::ElementsAre;
using testing::TemporaryFolder;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Writes a file with one tensor |name|.
template <class T>
std::string file_with(const std::string& path, DType dtype, const std::vector<T>& values,
                      std::vector<int64_t> shape = {}, const std::string& name = "w") {
  if (shape.empty()) shape = {static_cast<int64_t>(values.size())};
  Writer writer(path, {{name, dtype, shape}});
  writer.write(name, 0, std::as_bytes(std::span(values)));
  writer.finish();
  return path;
}

template <class A, class B = A>
TensorComparison compared(const std::vector<A>& a, const std::vector<B>& b, const Tolerance& tolerance = {},
                          DType type_a = DType::kF32, DType type_b = DType::kF32, bool any_type = false) {
  const TemporaryFolder folder;
  const Weights left(file_with(folder / "a", type_a, a)), right(file_with(folder / "b", type_b, b));
  TensorComparison result = compare_weights(left, right, tolerance, any_type).front();
  result.a = result.b = nullptr;  // the files no longer exist
  return result;
}

using Outcome = TensorComparison::Outcome;

TEST(SafetensorsCompare, FindsWhatIsIdentical) {
  const TensorComparison result = compared<float>({1, 2, kNan, 0}, {1, 2, kNan, -0.0f});
  EXPECT_EQ(result.outcome, Outcome::identical);
  EXPECT_TRUE(result.agrees());
  EXPECT_EQ(result.difference->elements, 4);
  EXPECT_EQ(result.difference->tolerance_used, 0);
}

TEST(SafetensorsCompare, FindsTheLargestDifferencesAndTheirPlaces) {
  const TensorComparison result =
      compared<float>({1, 2.5f, 100, 8}, {1, 2, 101, 8}, {.relative = 0.1, .absolute = 0.1});
  EXPECT_EQ(result.outcome, Outcome::differs);
  const Difference& d = *result.difference;
  EXPECT_EQ(d.unequal, 2);
  EXPECT_EQ(d.beyond, 1);
  EXPECT_EQ(d.largest_absolute.value, 1);
  EXPECT_EQ(d.largest_absolute.at, 2);
  EXPECT_EQ(d.largest_absolute.a, 100);
  EXPECT_EQ(d.largest_absolute.b, 101);
  EXPECT_EQ(d.largest_relative.value, 0.25);
  EXPECT_EQ(d.largest_relative.at, 1);
  EXPECT_DOUBLE_EQ(d.tolerance_used, 0.5 / (0.1 + 0.1 * 2));
  EXPECT_DOUBLE_EQ(d.norm_ratio, std::sqrt((0.25 + 1) / (1 + 4 + 101 * 101 + 64)));
}

TEST(SafetensorsCompare, AcceptsWhatIsExactlyAtTheTolerance) {
  EXPECT_EQ(compared<float>({1.5f}, {1}, {.absolute = 0.5}).outcome, Outcome::within_tolerance);
  EXPECT_EQ(compared<float>({1.5f}, {1}, {.absolute = 0.4999}).outcome, Outcome::differs);
  EXPECT_EQ(compared<float>({3}, {4}, {.relative = 0.25}).outcome, Outcome::within_tolerance);
  EXPECT_EQ(compared<float>({4}, {3}, {.relative = 0.25}).outcome, Outcome::differs) << "relative to B";
  EXPECT_EQ(compared<float>({1.5f}, {1}).outcome, Outcome::differs);
}

TEST(SafetensorsCompare, CountsNanOnOneSideAsInfinitelyFar) {
  const Tolerance wide{.relative = 10, .absolute = 10};
  for (const auto& [a, b] : {std::pair(kNan, 1.0f), std::pair(1.0f, kNan)}) {
    const TensorComparison result = compared<float>({1, a}, {1, b}, wide);
    EXPECT_EQ(result.outcome, Outcome::differs);
    EXPECT_EQ(result.difference->nan_in_one, 1);
    EXPECT_EQ(result.difference->largest_absolute.value, kInfinity);
    EXPECT_EQ(result.difference->largest_absolute.at, 1);
    EXPECT_EQ(result.difference->tolerance_used, kInfinity);
  }
}

TEST(SafetensorsCompare, TellsInfinitiesApart) {
  const auto inf = static_cast<float>(kInfinity);
  const Tolerance wide{.relative = 10, .absolute = 10};
  EXPECT_EQ(compared<float>({inf, -inf}, {inf, -inf}).outcome, Outcome::identical);
  EXPECT_EQ(compared<float>({inf}, {-inf}, wide).outcome, Outcome::differs);
  EXPECT_EQ(compared<float>({1}, {inf}, wide).outcome, Outcome::differs);
  EXPECT_EQ(compared<float>({inf}, {1}, wide).outcome, Outcome::differs);
}

TEST(SafetensorsCompare, IsExactForIntegers) {
  const int64_t large = (int64_t{1} << 62) + 1;  // equal to its adjacent integers as a double
  const TensorComparison result = compared<int64_t>({large, 5}, {large - 1, 5}, {}, DType::kI64, DType::kI64);
  EXPECT_EQ(result.outcome, Outcome::differs);
  EXPECT_EQ(result.difference->largest_absolute.value, 1);
  EXPECT_EQ(
      compared<int64_t>({INT64_MIN}, {INT64_MAX}, {}, DType::kI64, DType::kI64).difference->largest_absolute.value,
      std::ldexp(1, 64));
}

TEST(SafetensorsCompare, ComparesTheValuesOfDifferentTypes) {
  const std::vector<uint16_t> bf16 = {0x3f80, 0x4000};
  EXPECT_EQ(compared<uint16_t>(bf16, std::vector<float>{1, 2}, {}, DType::kBF16, DType::kF32).outcome,
            Outcome::other_type);
  EXPECT_EQ(compared<uint16_t>(bf16, std::vector<float>{1, 2}, {}, DType::kBF16, DType::kF32, true).outcome,
            Outcome::identical);
  EXPECT_EQ(compared<uint16_t>(bf16, std::vector<float>{1, 3}, {}, DType::kBF16, DType::kF32, true).outcome,
            Outcome::differs);
}

TEST(SafetensorsCompare, LooksAtEveryPieceOfALargeTensor) {
  std::vector<float> a(1'000'000, 1.0f);
  a[700'000] = 3;  // equal in both: no two pieces have the same contents
  std::vector<float> b = a;
  b[999'999] = 2;
  b[262'144] = 1.5;  // the first of the second piece
  const TensorComparison result = compared(a, b);
  EXPECT_EQ(result.difference->unequal, 2);
  EXPECT_EQ(result.difference->largest_absolute.at, 999'999);
  EXPECT_EQ(result.difference->largest_relative.at, 999'999);
  EXPECT_DOUBLE_EQ(result.difference->norm_ratio, std::sqrt((1 + 0.25) / (999'997 + 9 + 4 + 2.25)));
}

TEST(SafetensorsCompare, ListsTensorsOfOneSideAndOfOtherShapes) {
  const TemporaryFolder folder;
  const auto file = [&](const std::string& path, const std::vector<TensorShape>& tensors) {
    Writer writer(path, tensors);
    for (const TensorInfo& tensor : writer.plan().tensors)
      writer.write(tensor.name, 0, std::vector<std::byte>(tensor.bytes()));
    writer.finish();
    return path;
  };
  const Weights a(
      file(folder / "a", {{"l.10", DType::kF32, {2}}, {"l.2", DType::kF32, {2, 3}}, {"z", DType::kF32, {1}}}));
  const Weights b(
      file(folder / "b", {{"l.10", DType::kF32, {2}}, {"l.2", DType::kF32, {3, 2}}, {"y", DType::kC64, {1}}}));
  std::vector<std::string> seen;
  for (const TensorComparison& entry : compare_weights(a, b, {}, false))
    seen.push_back(entry.name + " " + to_string(entry.outcome));
  EXPECT_THAT(seen, ElementsAre("l.2 other shape", "l.10 identical", "y only in B", "z only in A"));
}

TEST(SafetensorsCompare, NumbersElementsByTheirIndex) {
  EXPECT_THAT(index_of(27, {5, 10}), ElementsAre(2, 7));
  EXPECT_THAT(index_of(0, {}), ElementsAre());
  EXPECT_THAT(index_of(23, {2, 3, 4}), ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace concord::safetensors
