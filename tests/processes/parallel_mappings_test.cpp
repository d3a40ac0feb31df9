// The mappings of parallel regions in real processes: values and derivatives compared with the same computation in one
// process. Numbers are small integers in fp64, so sums are exact in any order and compared by equality.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>

#include "core/base/config_error.h"
#include "core/parallel/async_collectives.h"
#include "core/parallel/mappings.h"
#include "tests/processes/groups/group_job.h"
#include "tests/processes/parallel_samples.h"

namespace concord::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kRows = 8;
constexpr int64_t kColumns = 12;

// A matrix of small integers that differ between |which|.
at::Tensor matrix(int64_t which) {
  return here(
      at::arange(kRows * kColumns, at::kDouble).mul_(7 + which).add_(which).remainder_(17).view({kRows, kColumns}));
}

at::Tensor part(const at::Tensor& x, const ProcessGroup& group, int64_t dim) {
  return x.chunk(group.size(), dim)[static_cast<size_t>(group.rank())];
}

at::Tensor sum_of_all(const ProcessGroup& group) {
  at::Tensor sum = at::zeros_like(matrix(0));
  for (int64_t r = 0; r < group.size(); ++r) sum.add_(matrix(r));
  return sum;
}

// The output of a mapping for |x|, and its gradient for the output gradient |g|.
struct Result {
  at::Tensor y;
  at::Tensor dx;
};

template <class Map>
Result run(const at::Tensor& x, const at::Tensor& g, Map map) {
  const at::Tensor leaf = x.clone().requires_grad_(true);
  const at::Tensor y = map(leaf);
  y.backward(g);
  return {y.detach(), leaf.grad()};
}

#define EXPECT_RESULT(result, expected_y, expected_dx)                                      \
  do {                                                                                      \
    const Result got = result;                                                              \
    EXPECT_TRUE(got.y.equal(expected_y)) << "forward with " << group.size() << " ranks";    \
    EXPECT_TRUE(got.dx.equal(expected_dx)) << "backward with " << group.size() << " ranks"; \
  } while (false)

void check_sums(ProcessGroup& group) {
  const at::Tensor mine = matrix(group.rank());
  const at::Tensor sum = sum_of_all(group);
  EXPECT_RESULT(run(matrix(0), mine, [&](const auto& x) { return copy_to_region(x, group); }), matrix(0), sum);
  EXPECT_RESULT(run(mine, matrix(9), [&](const auto& x) { return reduce_from_region(x, group); }), sum, matrix(9));
}

void check_parts(ProcessGroup& group, int64_t dim) {
  const at::Tensor whole = matrix(0);
  const at::Tensor mine = matrix(group.rank());
  const at::Tensor sum = sum_of_all(group);
  EXPECT_RESULT(run(part(whole, group, dim), mine, [&](const auto& x) { return gather_into_region(x, group, dim); }),
                whole, part(sum, group, dim));
  EXPECT_RESULT(
      run(mine, part(whole, group, dim), [&](const auto& x) { return reduce_scatter_to_region(x, group, dim); }),
      part(sum, group, dim), whole);
}

void check_exchange(ProcessGroup& group) {
  const at::Tensor whole = matrix(0);
  const at::Tensor gradient = matrix(3);
  EXPECT_RESULT(run(part(whole, group, 0), part(gradient, group, 1),
                    [&](const auto& x) { return exchange_in_region(x, group, 1, 0); }),
                part(whole, group, 1), part(gradient, group, 0));
  EXPECT_RESULT(run(part(whole, group, -1), part(gradient, group, 0),
                    [&](const auto& x) { return exchange_in_region(x, group, 0, -1); }),
                part(whole, group, 0), part(gradient, group, 1));
}

class ParallelMappings : public ::testing::TestWithParam<int> {};

TEST_P(ParallelMappings, ForwardAndBackwardAreThoseOfOneProcess) {
  expect_job(GetParam(), {.tensor_model_parallel_size = GetParam()}, [](ParallelContext& job) {
    ProcessGroup& group = job.group(GroupKind::tp);
    check_sums(group);
    for (const int64_t dim : {0, 1, -1}) check_parts(group, dim);
    check_exchange(group);
  });
}

TEST_P(ParallelMappings, MovesTakeTensorsThatAreNotContiguous) {
  expect_job(GetParam(), {.tensor_model_parallel_size = GetParam()}, [](ParallelContext& job) {
    ProcessGroup& group = job.group(GroupKind::tp);
    const at::Tensor across = matrix(0).t();
    EXPECT_TRUE(gather(part(across, group, 0), group, 0).take().equal(across));
    EXPECT_TRUE(reduce_scatter(across, group, 1).take().equal(part(across, group, 1).mul(group.size())));
  });
}

INSTANTIATE_TEST_SUITE_P(OfRanks, ParallelMappings, ::testing::Values(1, 2, 4));

TEST(ParallelMappingsErrors, ASizeThatDoesNotDivideIsNamedWithTheGroup) {
  expect_job(2, {.tensor_model_parallel_size = 2}, [](ParallelContext& job) {
    ProcessGroup& group = job.group(GroupKind::tp);
    const at::Tensor odd = matrix(0).narrow(0, 0, 7);
    try {
      own_part(odd, group, 0);
      FAIL() << "7 rows were cut in two";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("has 7 elements"), HasSubstr("2 ranks of group tp")));
    }
  });
}

}  // namespace
}  // namespace concord::tests
