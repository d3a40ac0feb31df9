#include "core/safetensors/compare.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <stdexcept>

#include "core/safetensors/decode.h"
#include "core/safetensors/natural_order.h"

namespace concord::safetensors {
namespace {

constexpr int64_t kPieceBytes = 1 << 20;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t parts_of(DType dtype) { return dtype == DType::kC64 ? 2 : 1; }  // numbers per element

double distance_of(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double distance = std::abs(a - b);
  return std::isnan(distance) ? kInfinity : distance;  // NaN on one side
}

// Accumulates a Difference, element by element.
class Sum {
 public:
  explicit Sum(const Tolerance& tolerance) : tolerance_(tolerance) {}

  void add(int64_t at, double a, double b, double distance) {
    if (std::isnan(a) != std::isnan(b)) ++result_.nan_in_one;
    const double size = std::isfinite(b) ? std::abs(b) : 0;
    squares_b_ += size * size;
    if (distance == 0) return;
    squares_ += distance * distance;
    ++result_.unequal;
    const double allowed = tolerance_.absolute + tolerance_.relative * size;
    if (distance > allowed) ++result_.beyond;
    result_.tolerance_used = std::max(result_.tolerance_used, allowed > 0 ? distance / allowed : kInfinity);
    keep_worst(result_.largest_absolute, distance, at, a, b);
    if (b != 0) keep_worst(result_.largest_relative, distance / size, at, a, b);
  }

  Difference result(int64_t elements) {
    result_.elements = elements;
    if (squares_ > 0) result_.norm_ratio = squares_b_ > 0 ? std::sqrt(squares_ / squares_b_) : kInfinity;
    return result_;
  }

  // Elements that are equal on both sides only contribute to the norm of b.
  void add_equal(std::span<const double> b) {
    for (const double value : b) squares_b_ += std::isfinite(value) ? value * value : 0;
  }

 private:
  static void keep_worst(Difference::Worst& worst, double value, int64_t at, double a, double b) {
    if (value > worst.value) worst = {value, at, a, b};
  }

  Tolerance tolerance_;
  Difference result_;
  double squares_ = 0;
  double squares_b_ = 0;
};

// A piece of a tensor at a time.
class PieceReader {
 public:
  explicit PieceReader(const Weights::Tensor& tensor) : tensor_(tensor) {}

  void read(int64_t first, int64_t count) {
    const int64_t size = size_of(tensor_.info->dtype);
    bytes_.resize(static_cast<size_t>(count * size));
    tensor_.file->read(*tensor_.info, static_cast<uint64_t>(first * size), bytes_);
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::span<const double> numbers() {
    numbers_.resize(bytes_.size() / static_cast<size_t>(size_of(tensor_.info->dtype) / parts_of(tensor_.info->dtype)));
    decode(bytes_, tensor_.info->dtype, numbers_);
    return numbers_;
  }
  std::span<const WideInteger> integers() {
    integers_.resize(bytes_.size() / static_cast<size_t>(size_of(tensor_.info->dtype)));
    decode_integers(bytes_, tensor_.info->dtype, integers_);
    return integers_;
  }

 private:
  const Weights::Tensor& tensor_;
  std::vector<std::byte> bytes_;
  std::vector<double> numbers_;
  std::vector<WideInteger> integers_;
};

void compare_piece(PieceReader& a, PieceReader& b, bool same_type, bool integers, int64_t first, int64_t parts,
                   Sum& sum) {
  const std::span<const double> b_numbers = b.numbers();
  if (same_type && a.bytes() == b.bytes()) {
    sum.add_equal(b_numbers);
    return;
  }
  const std::span<const double> a_numbers = a.numbers();
  if (integers) {
    const std::span<const WideInteger> x = a.integers(), y = b.integers();
    for (size_t i = 0; i < x.size(); ++i) {
      // Large integers may be equal as doubles, so their distance is computed before the conversion.
      const auto distance = static_cast<double>(x[i] > y[i] ? x[i] - y[i] : y[i] - x[i]);
      sum.add(first + static_cast<int64_t>(i), a_numbers[i], b_numbers[i], distance);
    }
    return;
  }
  for (size_t i = 0; i < b_numbers.size(); ++i)
    sum.add(first + static_cast<int64_t>(i) / parts, a_numbers[i], b_numbers[i],
            distance_of(a_numbers[i], b_numbers[i]));
}

TensorComparison compare_pair(const Weights::Tensor& a, const Weights::Tensor& b, const Tolerance& tolerance,
                              bool any_type) {
  using Outcome = TensorComparison::Outcome;
  TensorComparison result{.name = a.info->name, .a = a.info, .b = b.info};
  if (a.info->shape != b.info->shape) {
    result.outcome = Outcome::other_shape;
    return result;
  }
  if (parts_of(a.info->dtype) != parts_of(b.info->dtype)) {
    result.outcome = Outcome::other_type;
    return result;
  }
  result.difference = compare_tensors(a, b, tolerance);
  if (a.info->dtype != b.info->dtype && !any_type) {
    result.outcome = Outcome::other_type;
  } else if (result.difference->identical()) {
    result.outcome = Outcome::identical;
  } else {
    result.outcome = result.difference->beyond == 0 ? Outcome::within_tolerance : Outcome::differs;
  }
  return result;
}

}  // namespace

Difference compare_tensors(const Weights::Tensor& a, const Weights::Tensor& b, const Tolerance& tolerance) {
  const DType type_a = a.info->dtype, type_b = b.info->dtype;
  if (a.info->elements() != b.info->elements() || parts_of(type_a) != parts_of(type_b)) {
    throw std::logic_error(fmt::format("tensors of {} {} and {} {} cannot be compared", a.info->elements(),
                                       to_string(type_a), b.info->elements(), to_string(type_b)));
  }
  const int64_t at_once = kPieceBytes / std::max(size_of(type_a), size_of(type_b));
  PieceReader left(a), right(b);
  Sum sum(tolerance);
  for (int64_t first = 0; first < a.info->elements(); first += at_once) {
    const int64_t count = std::min(at_once, a.info->elements() - first);
    left.read(first, count);
    right.read(first, count);
    compare_piece(left, right, type_a == type_b, is_integer(type_a) && is_integer(type_b), first, parts_of(type_a),
                  sum);
  }
  return sum.result(a.info->elements());
}

const char* to_string(TensorComparison::Outcome outcome) {
  switch (outcome) {
    case TensorComparison::Outcome::identical: return "identical";
    case TensorComparison::Outcome::within_tolerance: return "within tolerance";
    case TensorComparison::Outcome::differs: return "differs";
    case TensorComparison::Outcome::other_type: return "other type";
    case TensorComparison::Outcome::other_shape: return "other shape";
    case TensorComparison::Outcome::only_in_a: return "only in A";
    case TensorComparison::Outcome::only_in_b: return "only in B";
  }
  return "unknown";
}

std::vector<TensorComparison> compare_weights(const Weights& a, const Weights& b, const Tolerance& tolerance,
                                              bool any_type) {
  using Outcome = TensorComparison::Outcome;
  std::set<std::string_view, decltype(&natural_less)> names(&natural_less);
  for (const auto& [name, tensor] : a.tensors()) names.insert(name);
  for (const auto& [name, tensor] : b.tensors()) names.insert(name);
  std::vector<TensorComparison> results;
  for (const std::string_view name : names) {
    const Weights::Tensor *left = a.find(name), *right = b.find(name);
    if (left == nullptr) {
      results.push_back({.name = std::string(name), .outcome = Outcome::only_in_b, .b = right->info});
    } else if (right == nullptr) {
      results.push_back({.name = std::string(name), .outcome = Outcome::only_in_a, .a = left->info});
    } else {
      results.push_back(compare_pair(*left, *right, tolerance, any_type));
    }
  }
  return results;
}

std::vector<int64_t> index_of(int64_t element, const std::vector<int64_t>& shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = element % shape[d];
    element /= shape[d];
  }
  return index;
}

}  // namespace concord::safetensors
