// Groups beyond the values of collectives: order, creation, coalescing, invalid calls.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <thread>

#include "core/mesh/channel.h"
#include "tests/processes/groups/group_job.h"

namespace concord::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <class Body>
std::string refusal(Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), CONCORD_STATUS_INVALID_ARGUMENT) << error.what();
    return error.what();
  }
  return "accepted";
}

at::Tensor tensor_of(int64_t count, double value) { return at::full({count}, value, at::kFloat); }

// Every rank uses its groups for the first time in a different order, and waits only at the end.
TEST(Groups, FirstUsedInAnyOrderDoNotDeadlock) {
  for (const unsigned seed : {1u, 2u, 3u}) {
    expect_job(8, {.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2, .context_parallel_size = 2},
               [seed](ParallelContext& job) {
                 std::vector<ProcessGroup*> groups;
                 for (const GroupKind kind : all_group_kinds()) {
                   if (!job.has_group(kind) || job.group(kind).size() == 1) continue;
                   ProcessGroup& group = job.group(kind);
                   const auto same = [&](const ProcessGroup* other) { return other->channel() == group.channel(); };
                   if (std::none_of(groups.begin(), groups.end(), same)) groups.push_back(&group);
                 }
                 std::mt19937 random(seed * 100 + static_cast<unsigned>(job.rank()));
                 std::shuffle(groups.begin(), groups.end(), random);
                 std::vector<std::pair<Work, at::Tensor>> works;
                 for (ProcessGroup* group : groups) {
                   const at::Tensor tensor = tensor_of(3, 1);
                   works.emplace_back(group->all_reduce(tensor), tensor);
                 }
                 for (size_t i = 0; i < groups.size(); ++i) {
                   works[i].first.wait();
                   EXPECT_TRUE(works[i].second.equal(tensor_of(3, static_cast<double>(groups[i]->size()))))
                       << groups[i]->name();
                 }
               });
  }
}

TEST(Groups, OfTheSameRanksShareACommunicatorAndUnusedOnesHaveNone) {
  expect_job(4, {.tensor_model_parallel_size = 2}, [](ParallelContext& job) {
    EXPECT_EQ(job.group(GroupKind::dp).channel(), job.group(GroupKind::dp_cp).channel());
    EXPECT_EQ(job.group(GroupKind::tp_dp).channel(), job.world_group().channel());
    EXPECT_NE(job.group(GroupKind::tp).channel(), job.group(GroupKind::dp).channel());
    EXPECT_EQ(job.group(GroupKind::pp).channel(), nullptr);
    const at::Tensor tensor = tensor_of(1, 1);
    job.group(GroupKind::dp_cp).all_reduce(tensor).wait();
    EXPECT_TRUE(job.group(GroupKind::dp).channel()->created());
    EXPECT_FALSE(job.group(GroupKind::tp).channel()->created());
  });
}

TEST(Groups, KeepTensorsAliveUntilTheWorkIsDone) {
  expect_job(2, {}, [](ParallelContext& job) {
    at::Tensor tensor = tensor_of(1 << 16, 1);
    at::Tensor watched = tensor;
    Work work = job.world_group().all_reduce(tensor);
    tensor.reset();
    std::vector<at::Tensor> others;
    for (int i = 0; i < 16; ++i) others.push_back(tensor_of(1 << 16, 7));  // would reuse the memory if it were free
    work.wait();
    EXPECT_TRUE(watched.equal(tensor_of(1 << 16, 2)));
    for (int i = 0; i < 50; ++i) (void)job.world_group().all_reduce(tensor_of(100, 1));  // dropped deliberately
    job.world_group().barrier().synchronize();
  });
}

TEST(Groups, AWorkMayOutliveTheContext) {
  const int port = free_port();
  expect_ranks(2, [&](int rank) {
    enter_job(rank, 2, port);
    const at::Tensor tensor = tensor_of(1 << 16, 1);
    {
      const Work kept = initialize({}).world_group().all_reduce(tensor);
      finalize();  // waits for calls in flight
      EXPECT_TRUE(kept.is_completed());
      kept.wait();
    }
    EXPECT_TRUE(tensor.equal(tensor_of(1 << 16, 2)));
  });
}

TEST(Groups, WorkIsCompletedOnlyWhenAllRanksHaveCome) {
  expect_job(2, {}, [](ParallelContext& job) {
    job.world_group().barrier().wait();
    const at::Tensor tensor = tensor_of(8, 1);
    if (job.rank() == 0) {
      const Work work = job.world_group().all_reduce(tensor);
      EXPECT_FALSE(work.is_completed());
      job.store().set("go", "1");
      work.synchronize();
      EXPECT_TRUE(work.is_completed());
    } else {
      job.store().get("go", std::chrono::seconds(60));
      job.world_group().all_reduce(tensor).wait();
    }
    EXPECT_TRUE(tensor.equal(tensor_of(8, 2)));
    EXPECT_TRUE(Work().is_completed());
  });
}

TEST(Groups, ManyCallsInFlightComeBackInOrder) {
  expect_job(3, {}, [](ParallelContext& job) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 300; ++i) {
      tensors.push_back(tensor_of(i % 17, i));
      works.push_back(job.world_group().all_reduce(tensors.back()));
    }
    works.back().wait();
    for (int i = 0; i < 300; ++i) {
      EXPECT_TRUE(works[static_cast<size_t>(i)].is_completed());
      EXPECT_TRUE(tensors[static_cast<size_t>(i)].equal(tensor_of(i % 17, 3 * i)));
    }
  });
}

TEST(Groups, CoalescedCallsEqualSingleOnes) {
  expect_job(3, {}, [](ParallelContext& job) {
    ProcessGroup& group = job.world_group();
    const auto mine = static_cast<double>(job.rank() + 1);
    std::vector<at::Tensor> tensors = {
        tensor_of(5, mine), tensor_of(100000, mine), at::full({3}, job.rank() + 1, at::kLong),
        tensor_of(0, 0),    tensor_of(7, 10 * mine), at::full({2, 2}, job.rank() + 1, at::kLong)};
    group.all_reduce_coalesced(tensors).wait();
    for (const at::Tensor& tensor : tensors) {
      EXPECT_TRUE(tensor.eq(tensor.numel() == 7 ? 60 : 6).all().item<bool>());
    }
    std::vector<at::Tensor> inputs = {tensor_of(2, mine), tensor_of(3, 10 * mine), tensor_of(50000, mine)};
    std::vector<at::Tensor> outputs = {tensor_of(6, 0), tensor_of(9, 0), tensor_of(150000, 0)};
    group.all_gather_coalesced(outputs, inputs).wait();
    for (size_t i = 0; i < 3; ++i) {
      const double unit = i == 1 ? 10 : 1;
      const int64_t n = inputs[i].numel();
      EXPECT_TRUE(outputs[i].equal(at::cat({tensor_of(n, unit), tensor_of(n, 2 * unit), tensor_of(n, 3 * unit)})));
    }
    group.reduce_scatter_coalesced(inputs, outputs, ReduceOp::kMax).wait();
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(inputs[i].equal(tensor_of(inputs[i].numel(), (i == 1 ? 10 : 1) * mine)));
  });
}

TEST(Groups, MoveTypesThatThePlatformCannotReduce) {
  expect_job(2, {}, [](ParallelContext& job) {
    ProcessGroup& group = job.world_group();
    const at::Tensor eighth = at::full({6}, job.rank() == 0 ? 1.5 : 0.0, at::kFloat).to(at::kFloat8_e4m3fn);
    group.broadcast(eighth, 0).wait();
    EXPECT_TRUE(eighth.to(at::kFloat).equal(tensor_of(6, 1.5)));
    EXPECT_THAT(refusal([&] { group.all_reduce(eighth).wait(); }),
                AllOf(HasSubstr("all_reduce in group world (2 ranks)"), HasSubstr("Float8_e4m3fn [6]"),
                      HasSubstr("cannot be reduced")));
  });
}

TEST(Groups, RefuseWhatCannotBeMeantWithNamesAndNumbers) {
  expect_job(2, {.tensor_model_parallel_size = 2}, [](ParallelContext& job) {
    ProcessGroup& tp = job.group(GroupKind::tp);
    const at::Tensor four = tensor_of(4, 1);
    const at::Tensor matrix = at::zeros({4, 4}, at::kFloat);
    EXPECT_THAT(refusal([&] { tp.all_gather(tensor_of(12, 0), four).wait(); }),
                AllOf(HasSubstr("all_gather in group tp (2 ranks): tensors of Float [12] and Float [4]"),
                      HasSubstr("2 x 4 = 8")));
    EXPECT_THAT(refusal([&] { tp.all_gather(at::zeros({8}, at::kLong), four).wait(); }),
                HasSubstr("Long [8] and Float [4]"));
    EXPECT_THAT(refusal([&] { tp.reduce_scatter(four, tensor_of(4, 0)).wait(); }),
                HasSubstr("reduce_scatter in group tp"));
    EXPECT_THAT(refusal([&] { tp.all_reduce(matrix.t()).wait(); }),
                AllOf(HasSubstr("strides [1, 4]"), HasSubstr("contiguous()")));
    EXPECT_THAT(refusal([&] { tp.all_reduce(at::Tensor()).wait(); }), HasSubstr("undefined"));
    EXPECT_THAT(refusal([&] { tp.broadcast(four, 2).wait(); }), HasSubstr("root is 2; must be from 0 to 1"));
    EXPECT_THAT(refusal([&] { tp.broadcast(four, -1).wait(); }), HasSubstr("root is -1"));
    EXPECT_THAT(refusal([&] { tp.all_to_all(tensor_of(3, 0), tensor_of(3, 0)).wait(); }), HasSubstr("divisible by 2"));
    const std::vector<int64_t> good = {2, 2}, wrong = {2, 1}, few = {4}, negative = {5, -1};
    EXPECT_THAT(refusal([&] { tp.all_to_all_v(four, four, good, wrong).wait(); }),
                HasSubstr("send_rows is 2, 1; must be 2 numbers"));
    EXPECT_THAT(refusal([&] { tp.all_to_all_v(four, four, few, good).wait(); }), HasSubstr("recv_rows is 4"));
    EXPECT_THAT(refusal([&] { tp.all_to_all_v(four, four, negative, good).wait(); }), HasSubstr("numbers >= 0"));
    EXPECT_THAT(refusal([&] { tp.all_to_all_v(matrix, four, good, good).wait(); }), HasSubstr("only in dimension 0"));
    EXPECT_THAT(refusal([&] { tp.batch_p2p(std::vector{send(four, tp.rank())}).wait(); }),
                HasSubstr("the peer must be another rank"));
    EXPECT_THAT(refusal([&] { tp.batch_p2p(std::vector{recv(four, 7)}).wait(); }), HasSubstr("rank 7"));
    EXPECT_THAT(refusal([&] { tp.all_reduce_coalesced(std::vector{four, at::Tensor()}).wait(); }),
                HasSubstr("undefined"));
    EXPECT_THAT(refusal([&] { tp.all_gather_coalesced(std::vector{tensor_of(8, 0)}, {}).wait(); }),
                HasSubstr("1 and 0 tensors"));
    const at::Tensor still = tensor_of(2, 1);
    tp.all_reduce(still).wait();
    EXPECT_TRUE(still.equal(tensor_of(2, 2))) << "the group is as good as before";
  });
}

TEST(Groups, OfOneRankCopy) {
  expect_job(1, {}, [](ParallelContext& job) {
    ProcessGroup& tp = job.group(GroupKind::tp);
    const at::Tensor in = at::arange(6, at::kFloat);
    const at::Tensor out = at::zeros({6}, at::kFloat);
    const std::vector<int64_t> rows = {6};
    for (const auto& call : std::vector<std::function<Work()>>{
             [&] { return tp.all_gather(out, in); }, [&] { return tp.reduce_scatter(out, in); },
             [&] { return tp.all_to_all(out, in); }, [&] { return tp.all_to_all_v(out, in, rows, rows); }}) {
      out.zero_();
      call().wait();
      EXPECT_TRUE(out.equal(in));
    }
    tp.all_reduce(out).wait();
    tp.broadcast(out, 0).wait();
    tp.barrier().wait();
    EXPECT_TRUE(out.equal(in));
    out.zero_();
    tp.all_gather_coalesced(std::vector{out}, std::vector{in}).wait();
    EXPECT_TRUE(out.equal(in));
  });
}

TEST(Groups, OfAnotherStageAreRefusedWithTheStage) {
  expect_job(3, {.pipeline_model_parallel_size = 3}, [](ParallelContext& job) {
    EXPECT_EQ(job.has_group(GroupKind::embedding), job.rank() != 1);
    EXPECT_EQ(job.has_group(GroupKind::position_embedding), job.rank() == 0);
    if (job.rank() == 1) {
      EXPECT_THAT(refusal([&] { job.group(GroupKind::embedding); }),
                  HasSubstr("rank 1 is not in any embedding group: its pipeline stage is 1 of 3"));
    }
  });
}

TEST(Groups, AreUsedFromSeveralThreads) {
  expect_job(2, {}, [](ParallelContext& job) {
    // All calls are identical, so any order of the threads is the same on all ranks.
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&job] {
        for (int call = 0; call < 50; ++call) {
          const at::Tensor tensor = tensor_of(4, 1);
          job.world_group().all_reduce(tensor).wait();
          EXPECT_TRUE(tensor.equal(tensor_of(4, 2)));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

}  // namespace
}  // namespace concord::tests
