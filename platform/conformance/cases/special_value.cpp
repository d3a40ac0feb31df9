// Reductions of NaN, infinities, denormals and extreme values: the rules of IEEE 754 and of types.h, at the head of
// numerics.h. Combinations whose result depends on the order of the operations are omitted: where a partial result may
// overflow and the whole may not.
#include <cmath>
#include <limits>

#include "platform/conformance/collectives.h"
#include "platform/conformance/registry.h"

namespace concord::conformance {
namespace {

std::vector<double> special_values(concord_dtype dtype) {
  const FloatFormat& format = format_of(dtype);
  const double infinity = std::numeric_limits<double>::infinity();
  return {0.0,
          -0.0,
          1.0,
          -1.5,
          infinity,
          -infinity,
          std::nan(""),
          format.largest,
          -format.largest,
          format.smallest_normal,
          format.smallest_denormal,
          -3 * format.smallest_denormal,
          format.smallest_normal - format.smallest_denormal};
}

// Whether some order of operations could overflow or underflow on the way to a result that another order reaches.
bool depends_on_order(concord_dtype dtype, concord_reduce_op reduce, const std::vector<double>& elements) {
  const FloatFormat& format = format_of(dtype);
  double magnitude = 0;
  double up = 0;
  double down = 0;
  bool special = false;
  bool positive = false;
  bool negative = false;
  for (const double element : elements) {
    special = special || !std::isfinite(element) || element == 0;
    positive = positive || element > 0;
    negative = negative || element < 0;
    if (!std::isfinite(element) || element == 0) continue;
    magnitude += std::fabs(element) / 4;  // a quarter, so that a sum of doubles does not overflow
    const double power = std::log2(std::fabs(element));
    (power > 0 ? up : down) += power;
  }
  const bool overflows = magnitude > format.largest / 8;
  const bool product_leaves = up > std::log2(format.largest) - 1 || down < std::log2(format.smallest_normal) + 1;
  switch (reduce) {
    case CONCORD_REDUCE_SUM: return overflows && (special || (positive && negative));
    case CONCORD_REDUCE_AVG: return overflows;
    case CONCORD_REDUCE_PROD: return elements.size() > 2 && product_leaves;
    default: return false;
  }
}

// Every tuple of special values for two ranks, and the same number of pseudo-random ones for more.
std::vector<std::vector<double>> tuples(concord_dtype dtype, concord_reduce_op reduce, int world) {
  const std::vector<double> values = special_values(dtype);
  const size_t pairs = values.size() * values.size();
  std::vector<std::vector<double>> result;
  for (size_t i = 0; i < pairs * static_cast<size_t>(world); ++i) {
    std::vector<double> elements;
    size_t rest = world == 2 ? i % pairs : (i * 2654435761u) >> 3;
    for (int rank = 0; rank < world; ++rank) {
      elements.push_back(values[rest % values.size()]);
      rest /= values.size();
    }
    if (!depends_on_order(dtype, reduce, elements)) result.push_back(elements);
  }
  return result;
}

Bytes encode_column(concord_dtype dtype, const std::vector<std::vector<double>>& rows, int rank) {
  std::vector<double> values;
  for (const auto& row : rows) values.push_back(row[static_cast<size_t>(rank)]);
  Bytes bytes(values.size() * static_cast<size_t>(size_of(dtype)));
  encode_floats(dtype, values.data(), static_cast<int64_t>(values.size()), bytes.data());
  return bytes;
}

void check_row(Context& t, concord_dtype dtype, concord_reduce_op reduce, const std::vector<double>& row, double got) {
  Bounded wanted = reduce_floats(dtype, reduce, row.data(), static_cast<int>(row.size()));
  if (t.capability(kFlushesDenormals) != 0)
    wanted.bound += static_cast<double>(row.size()) * format_of(dtype).smallest_normal;
  const double share = share_of_bound(dtype, wanted, got);
  if (share <= 1) return t.note_share(share);
  std::string inputs;
  for (const double element : row) inputs += text(" %g", element);
  t.fail(text("%s of%s is %g, expected %g +- %g", name_of_reduction(reduce), inputs.c_str(), got, wanted.exact,
              wanted.bound));
}

void special_values_follow_the_rules(Context& t, concord_dtype dtype, concord_reduce_op reduce) {
  const concord_comm_table& c = t.comms();
  Bench(t).require_supported({CONCORD_COMM_ALL_REDUCE, dtype, reduce});
  const auto rows = tuples(dtype, reduce, t.world());
  const auto count = static_cast<int64_t>(rows.size());
  const Bytes mine = encode_column(dtype, rows, t.rank());
  Guarded send(t, static_cast<int64_t>(mine.size()));
  Guarded recv(t, static_cast<int64_t>(mine.size()));
  send.write(mine);
  CHECK_OK(c.all_reduce(c.self, t.world_comm(), send.get(), recv.get(), count, dtype, reduce, t.stream()));
  synchronize(t, t.stream());
  const Bytes received = recv.read("receive");
  std::vector<double> got(rows.size());
  decode_floats(dtype, received.data(), count, got.data());
  for (size_t i = 0; i < rows.size(); ++i) check_row(t, dtype, reduce, rows[i], got[i]);
}

void extreme_integers_wrap(Context& t, concord_dtype dtype, concord_reduce_op reduce) {
  const concord_comm_table& c = t.comms();
  Bench(t).require_supported({CONCORD_COMM_ALL_REDUCE, dtype, reduce});
  const std::vector<int64_t> values = {lowest_integer(dtype),         highest_integer(dtype),        0, 1,
                                       lowest_integer(dtype) / 2 + 1, highest_integer(dtype) / 2 + 1};
  constexpr size_t kRows = 216;
  const auto element = [&](size_t row, int rank) {
    for (int i = 0; i < rank; ++i) row /= values.size();
    return values[row % values.size()];
  };
  std::vector<int64_t> column;
  for (size_t row = 0; row < kRows; ++row) column.push_back(element(row, t.rank()));
  Bytes mine(kRows * static_cast<size_t>(size_of(dtype)));
  encode_integers(dtype, column.data(), kRows, mine.data());
  Guarded send(t, static_cast<int64_t>(mine.size()));
  Guarded recv(t, static_cast<int64_t>(mine.size()));
  send.write(mine);
  CHECK_OK(c.all_reduce(c.self, t.world_comm(), send.get(), recv.get(), kRows, dtype, reduce, t.stream()));
  synchronize(t, t.stream());
  const Bytes received = recv.read("receive");
  std::vector<int64_t> got(kRows);
  decode_integers(dtype, received.data(), kRows, got.data());
  for (size_t row = 0; row < kRows; ++row) {
    std::vector<int64_t> elements;
    for (int rank = 0; rank < t.world(); ++rank) elements.push_back(element(row, rank));
    const int64_t wanted = reduce_integers(dtype, reduce, elements.data(), t.world());
    CHECK(got[row] == wanted, "row %zu is %lld, expected %lld", row, static_cast<long long>(got[row]),
          static_cast<long long>(wanted));
  }
}

Test on_two_and_three(std::string name, std::function<void(Context&)> body) {
  Test test{"comm", std::move(name), std::move(body)};
  test.least_world = 2;
  test.most_world = 3;
  return test;
}

}  // namespace

void add_special_value_tests(Registry& registry) {
  for (const concord_dtype dtype : kFloatDtypes) {
    for (const concord_reduce_op reduce : kAllReductions) {
      registry.add(on_two_and_three(
          text("%sOf%sNanInfinityAndDenormalsFollowsTheRules", name_of_reduction(reduce), name_of(dtype)),
          [dtype, reduce](Context& t) { special_values_follow_the_rules(t, dtype, reduce); }));
    }
  }
  for (const concord_dtype dtype :
       {CONCORD_DTYPE_I8, CONCORD_DTYPE_I16, CONCORD_DTYPE_I32, CONCORD_DTYPE_I64, CONCORD_DTYPE_U8}) {
    for (const concord_reduce_op reduce :
         {CONCORD_REDUCE_SUM, CONCORD_REDUCE_PROD, CONCORD_REDUCE_MIN, CONCORD_REDUCE_MAX}) {
      registry.add(on_two_and_three(text("%sOfExtreme%sWrapsOrKeepsThem", name_of_reduction(reduce), name_of(dtype)),
                                    [dtype, reduce](Context& t) { extreme_integers_wrap(t, dtype, reduce); }));
    }
  }
}

}  // namespace concord::conformance
