// Every collective through every kind of group, in real processes on the cpu backend.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "core/mesh/channel.h"
#include "platform/loader/text.h"
#include "tests/processes/groups/group_job.h"

namespace concord::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns the input of rank |rank| to a collective: numbers whose sums are exact in fp32.
at::Tensor numbers(int64_t rank, int64_t count) {
  return at::arange(count, at::kFloat).add_(static_cast<double>(100 * (rank + 1)));
}

std::vector<at::Tensor> all_numbers(const ProcessGroup& group, int64_t count) {
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < group.size(); ++i) all.push_back(numbers(group.ranks()[i], count));
  return all;
}

at::Tensor sum_of(const std::vector<at::Tensor>& tensors) {
  at::Tensor sum = at::zeros(tensors.front().sizes(), at::kFloat);
  for (const at::Tensor& each : tensors) sum.add_(each);
  return sum;
}

#define EXPECT_SAME(actual, expected) \
  EXPECT_TRUE((actual).equal(expected)) << "in group " << group.name() << " of " << group.ranks().to_string()

void check_reductions(ProcessGroup& group) {
  constexpr int64_t kCount = 37;
  const int64_t me = group.ranks()[group.rank()];
  const at::Tensor sum = sum_of(all_numbers(group, kCount));
  const at::Tensor reduced = numbers(me, kCount);
  group.all_reduce(reduced).wait();
  EXPECT_SAME(reduced, sum);
  const at::Tensor largest = numbers(me, kCount);
  group.all_reduce(largest, ReduceOp::kMax).wait();
  const std::vector<int64_t> members = group.ranks().members();
  EXPECT_SAME(largest, numbers(*std::max_element(members.begin(), members.end()), kCount));
  const at::Tensor whole = at::cat(std::vector<at::Tensor>(static_cast<size_t>(group.size()), numbers(me, kCount)));
  const at::Tensor part = at::zeros({kCount}, at::kFloat);
  group.reduce_scatter(part, whole).wait();
  EXPECT_SAME(part, sum);
}

void check_movements(ProcessGroup& group) {
  constexpr int64_t kCount = 37;
  const int64_t me = group.ranks()[group.rank()];
  const std::vector<at::Tensor> all = all_numbers(group, kCount);
  for (int64_t root = 0; root < group.size(); root += std::max<int64_t>(group.size() - 1, 1)) {
    const at::Tensor received = numbers(me, kCount);
    group.broadcast(received, root).wait();
    EXPECT_SAME(received, all[static_cast<size_t>(root)]);
  }
  const at::Tensor gathered = at::zeros({group.size(), kCount}, at::kFloat);
  group.all_gather(gathered, numbers(me, kCount)).wait();
  EXPECT_SAME(gathered.view({-1}), at::cat(all));
  // Rank r sends me * 1000 + s to rank s.
  const at::Tensor sent = at::arange(group.size(), at::kLong).add_(group.rank() * 1000);
  const at::Tensor exchanged = at::zeros({group.size()}, at::kLong);
  group.all_to_all(exchanged, sent).wait();
  EXPECT_SAME(exchanged, at::arange(group.size(), at::kLong).mul_(1000).add_(group.rank()));
  group.barrier().wait();
}

// Rank r sends r + s + 1 rows of two elements to rank s.
void check_uneven_exchange(ProcessGroup& group) {
  std::vector<int64_t> rows;
  std::vector<at::Tensor> expected;
  for (int64_t peer = 0; peer < group.size(); ++peer) {
    rows.push_back(group.rank() + peer + 1);
    expected.push_back(at::full({rows.back(), 2}, static_cast<double>(peer), at::kBFloat16));
  }
  const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const at::Tensor input = at::full({total, 2}, static_cast<double>(group.rank()), at::kBFloat16);
  const at::Tensor output = at::empty({total, 2}, at::kBFloat16);
  group.all_to_all_v(output, input, rows, rows).wait();
  EXPECT_SAME(output, at::cat(expected));
}

// A ring in both directions at the same time.
void check_transfers(ProcessGroup& group) {
  if (group.size() == 1) return;
  const int64_t next = (group.rank() + 1) % group.size();
  const int64_t previous = (group.rank() + group.size() - 1) % group.size();
  const at::Tensor mine = numbers(group.rank(), 5);
  const at::Tensor from_previous = at::zeros({5}, at::kFloat);
  const at::Tensor from_next = at::zeros({5}, at::kFloat);
  if (next == previous) {
    group.batch_p2p(std::vector{send(mine, next), recv(from_previous, previous)}).wait();
  } else {
    group
        .batch_p2p(
            std::vector{recv(from_previous, previous), recv(from_next, next), send(mine, next), send(mine, previous)})
        .wait();
    EXPECT_SAME(from_next, numbers(next, 5));
  }
  EXPECT_SAME(from_previous, numbers(previous, 5));
}

void check_group(ProcessGroup& group) {
  check_reductions(group);
  check_movements(group);
  check_uneven_exchange(group);
  check_transfers(group);
}

void check_all_groups(ParallelContext& job) {
  for (const GroupKind kind : all_group_kinds()) {
    if (!job.has_group(kind)) continue;
    ProcessGroup& group = job.group(kind);
    EXPECT_EQ(group.ranks().members(), job.layout().group_of(kind, job.rank())->members());
    EXPECT_EQ(group.ranks()[group.rank()], job.rank());
    check_group(group);
  }
  check_group(job.world_group());
}

struct Layout {
  int world;
  InitializeArgs args;
};

class GroupsOf : public ::testing::TestWithParam<Layout> {};

TEST_P(GroupsOf, ComputeEveryCollectiveRight) { expect_job(GetParam().world, GetParam().args, check_all_groups); }

TEST_P(GroupsOf, MadeAtOnceComputeEveryCollectiveRight) {
  InitializeArgs args = GetParam().args;
  args.create_groups.assign(all_group_kinds().begin(), all_group_kinds().end());
  expect_job(GetParam().world, args, [](ParallelContext& job) {
    for (const GroupKind kind : all_group_kinds()) {
      if (!job.has_group(kind) || job.group(kind).channel() == nullptr) continue;
      EXPECT_TRUE(job.group(kind).channel()->created()) << to_string(kind);
    }
    check_all_groups(job);
  });
}

constexpr const char* kDpLast = "tp-cp-ep-pp-dp";
const Layout kLayouts[] = {
    {1, {}},
    {2, {.tensor_model_parallel_size = 2}},
    {3, {}},
    {4, {.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2}},
    {4, {.tensor_model_parallel_size = 2, .expert_model_parallel_size = 2, .expert_tensor_parallel_size = 1}},
    {5, {.pipeline_model_parallel_size = 5}},
    {6, {.pipeline_model_parallel_size = 3, .context_parallel_size = 2}},
    {7, {.context_parallel_size = 7}},
    {8, {.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2, .context_parallel_size = 2}},
    {8,
     {.tensor_model_parallel_size = 2,
      .pipeline_model_parallel_size = 2,
      .expert_model_parallel_size = 2,
      .expert_tensor_parallel_size = 1,
      .order = kDpLast}},
    {9, {.tensor_model_parallel_size = 3}},
    {10, {.pipeline_model_parallel_size = 2}},
    {11, {.tensor_model_parallel_size = 11}},
    {12, {.tensor_model_parallel_size = 3, .pipeline_model_parallel_size = 2}},
    {13, {}},
    {14, {.tensor_model_parallel_size = 2, .context_parallel_size = 7}},
    {15, {.tensor_model_parallel_size = 5, .pipeline_model_parallel_size = 3}},
    {16, {.tensor_model_parallel_size = 4, .pipeline_model_parallel_size = 2}},
    {16,
     {.tensor_model_parallel_size = 2,
      .pipeline_model_parallel_size = 2,
      .context_parallel_size = 2,
      .expert_model_parallel_size = 2}},
};
INSTANTIATE_TEST_SUITE_P(Worlds, GroupsOf, ::testing::ValuesIn(kLayouts), [](const auto& test) {
  const InitializeArgs& args = test.param.args;
  return loader::cat("World", test.param.world, "Tp", args.tensor_model_parallel_size, "Pp",
                     args.pipeline_model_parallel_size, "Cp", args.context_parallel_size, "Ep",
                     args.expert_model_parallel_size, "Etp", args.expert_tensor_parallel_size,
                     args.order == kDpLast ? "DpLast" : "");
});

}  // namespace
}  // namespace concord::tests
