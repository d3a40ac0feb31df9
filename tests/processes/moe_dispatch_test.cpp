// Dispatch of tokens to experts of other ranks, in real processes, compared with the same computation with all experts
// on one rank.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "core/models/layers/moe_mlp.h"
#include "core/ops/derivative.h"
#include "core/ops/moe/grouped_linear.h"
#include "core/parallel/mappings.h"
#include "core/parallel/moe_dispatch.h"
#include "tests/processes/groups/group_job.h"
#include "tests/processes/parallel_samples.h"

namespace concord::tests {
namespace {

using at::Tensor;

constexpr int64_t kExperts = 8, kWidth = 3, kChoices = 2;

// Small integers on the rank's device: sums of their products are exact in fp32, in any order.
Tensor whole_numbers(std::vector<int64_t> shape, uint64_t seed) {
  return here(sample(std::move(shape), seed).mul(8).floor().to(at::kFloat));
}

// The tokens of |rank| in |trial|, and their routing. Some trials have ranks without tokens, experts without tokens, or
// one expert with all of them.
struct RoutedTokens {
  Tensor x;        // [tokens, h]
  Tensor experts;  // [tokens, k]
  Tensor weights;  // [tokens, k]
  Tensor grad;     // gradient of the result
};

RoutedTokens routed_tokens(uint64_t trial, int64_t rank) {
  const uint64_t seed = trial * 64 + static_cast<uint64_t>(rank) * 8;
  const int64_t tokens = trial % 7 == 3 ? 0 : sample({1}, seed).add(1).mul(6).to(at::kLong).item<int64_t>();
  const int64_t used = trial % 5 == 0 ? 1 : trial % 5 == 1 ? 3 : kExperts;  // experts starting at |first|
  const int64_t first = static_cast<int64_t>(trial / 5) % kExperts;
  const Tensor draws = sample({tokens, kChoices}, seed + 1).add(1).div(2).mul(static_cast<double>(used));
  return {whole_numbers({tokens, kWidth}, seed + 2), here(draws.to(at::kLong).add(first).remainder(kExperts)),
          whole_numbers({tokens, kChoices}, seed + 3), whole_numbers({tokens, kWidth}, seed + 4)};
}

// Returns the outputs of the tokens, and the gradients, with all experts [e, h, h].
struct ExpertOutcome {
  Tensor y, dx, dweights, dexperts;
};

template <class Run>
ExpertOutcome expert_outcome(const RoutedTokens& given, const Tensor& experts, const Run& run) {
  const Tensor x = given.x.clone().requires_grad_(true), weights = given.weights.clone().requires_grad_(true);
  const Tensor parameters = experts.clone().requires_grad_(true);
  const ExpertOrder order = order_by_expert(given.experts, kExperts);
  const Tensor y = moe_combine(run(moe_permute(x, order), order.ends, parameters), weights, order);
  y.backward(given.grad);
  return {y.detach(), x.grad(), weights.grad(), parameters.grad()};
}

// Every kind of routing (routed_tokens) once: 5 x 7 x 8. With --all a thousand of them, by CONCORD_ROUTINGS.
TEST(MoeDispatch, RoutingsGiveExactlyWhatOneRankComputes) {
  expect_job(4, {.expert_model_parallel_size = 4}, [](ParallelContext& job) {
    const char* const asked = std::getenv("CONCORD_ROUTINGS");
    const uint64_t trials = asked != nullptr ? std::stoull(asked) : job.torch_device().is_cpu() ? 280 : 100;
    ProcessGroup& ep = job.group(GroupKind::ep);
    const Tensor experts = whole_numbers({kExperts, kWidth, kWidth}, 99);
    const int64_t own = kExperts / ep.size(), first = own * ep.rank();
    for (uint64_t trial = 0; trial < trials && !::testing::Test::HasFailure(); ++trial) {
      SCOPED_TRACE(trial);
      const auto alone = [](const Tensor& rows, const Tensor& ends, const Tensor& all) {
        return grouped_linear(rows, all, ends);
      };
      const auto together = [&](const Tensor& rows, const Tensor& ends, const Tensor& part) {
        const MoeDispatch plan = plan_dispatch(ends, ep);
        return combine_rows(grouped_linear(dispatch_rows(rows, plan, ep), part, plan.order.ends), plan, ep);
      };
      const ExpertOutcome got =
          expert_outcome(routed_tokens(trial, ep.rank()), experts.narrow(0, first, own), together);
      Tensor wanted_dexperts;
      for (int64_t rank = 0; rank < ep.size(); ++rank) {
        const ExpertOutcome wanted = expert_outcome(routed_tokens(trial, rank), experts, alone);
        wanted_dexperts = rank == 0 ? wanted.dexperts : wanted_dexperts + wanted.dexperts;
        if (rank != ep.rank()) continue;
        EXPECT_TRUE(got.y.equal(wanted.y));
        EXPECT_TRUE(got.dx.equal(wanted.dx));
        EXPECT_TRUE(got.dweights.equal(wanted.dweights));
      }
      EXPECT_TRUE(got.dexperts.equal(wanted_dexperts.narrow(0, first, own)));
    }
  });
}

// Returns |x|; |run| is called when its gradient is computed.
Tensor when_differentiated(const Tensor& x, std::function<void()> run) {
  return ops::differentiable(
      "a call in backward", {x}, [&] { return ops::Forward{x.clone(), {}}; },
      [run = std::move(run)](const ops::Backward& b) {
        run();
        return ops::Tensors{b.grad};
      });
}

// Rank 1 starts an exchange only after rank 0, which has started before, has reached the work in between, in forward
// and in backward: if rank 0 waited for its rows first, the two would wait for each other until the timeout.
TEST(MoeDispatch, WorkInBetweenRunsWhileRowsAreUnderWay) {
  const std::vector<int64_t> two{2, 2};
  expect_job(2, {.expert_model_parallel_size = 2, .ddp_timeout = 30}, [&](ParallelContext& job) {
    ProcessGroup& ep = job.group(GroupKind::ep);
    const auto tell = [&](const char* what) {
      if (ep.rank() == 0) job.store().set(what, "1");
    };
    const auto hear = [&](const char* what) {
      if (ep.rank() == 1) job.store().get(what, Store::Milliseconds(20000));
    };
    const Tensor x = whole_numbers({4, kWidth}, static_cast<uint64_t>(ep.rank())).requires_grad_(true);
    const Tensor other = whole_numbers({4, kWidth}, 9).requires_grad_(true);
    hear("forward");
    AsyncAllToAll under_way(x, ep, two, two, /*waits=*/false);
    const Tensor between = when_differentiated(other, [&] { tell("backward"); });
    tell("forward");
    const Tensor rows = under_way.take();
    const Tensor from_zero = whole_numbers({4, kWidth}, 0), from_one = whole_numbers({4, kWidth}, 1);
    EXPECT_TRUE(rows.equal(at::cat({from_zero.narrow(0, 2 * ep.rank(), 2), from_one.narrow(0, 2 * ep.rank(), 2)})));
    const Tensor late = when_differentiated(rows, [&] { hear("backward"); });
    (late * static_cast<double>(ep.rank() + 1) + between).sum().backward();
    EXPECT_TRUE(x.grad().equal(at::cat({at::full({2, kWidth}, 1.0), at::full({2, kWidth}, 2.0)}).to(x.options())));
  });
}

// ------------------------------------------------------------------------------------- the layer, with uneven tokens

ModelConfig small_config() {
  ModelConfig config;
  config.hidden_size = 4;
  config.num_hidden_layers = 1;
  config.norms.before_mlp = "";
  config.experts = {.num_experts = kExperts, .num_experts_per_tok = 2, .intermediate_size = 8, .sparse = {true}};
  return config;
}

// A layer of experts with the weights of the shard at |place|, on groups of any kind.
struct SmallLayer {
  std::map<std::string, Parameter> parameters;
  LayerContext context;

  SmallLayer(const ShardPlace& place, ProcessGroup& tp, ProcessGroup& etp, ProcessGroup& ep, ProcessGroup& tp_ep) {
    const ShardPlace::Axis by_ep = place[ShardAxis::ep], by_etp = place[ShardAxis::etp];
    const auto part = [](const Tensor& x, int64_t dim, const ShardPlace::Axis& axis) {
      return x.chunk(axis.count, dim)[static_cast<size_t>(axis.index)];
    };
    const auto add = [&](const std::string& name, const Tensor& value) {
      parameters[name].value = value.contiguous().clone().requires_grad_(true);
    };
    add("router.weight", sample({kExperts, 4}, 1));
    const std::vector<Tensor> gate_up = part(sample({kExperts, 16, 4}, 2), 0, by_ep).chunk(2, 1);
    add("experts.gate_up_proj.weight", at::cat({part(gate_up[0], 1, by_etp), part(gate_up[1], 1, by_etp)}, 1));
    add("experts.down_proj.weight", part(part(sample({kExperts, 4, 8}, 3), 0, by_ep), 2, by_etp));
    context.config = small_config();
    context.tp = context.cp = context.tp_cp = &tp;
    context.etp = &etp;
    context.ep = &ep;
    context.tp_ep = &tp_ep;
    context.find = [this](const std::string& name) {
      const auto found = parameters.find(name.substr(name.find("mlp.") + 4));
      return found == parameters.end() ? nullptr : &found->second;
    };
  }

  // Runs |tokens| of this rank drawn with |seed|: returns their outputs and their gradient.
  std::pair<Tensor, Tensor> run(int64_t tokens, uint64_t seed) {
    const Tensor x = sample({tokens, 2, 4}, seed).requires_grad_(true);
    const Tensor y = MoeMlp(context, 0).forward({x}, std::make_shared<LayerInputs>()).branch_pbh;
    y.backward(sample({tokens, 2, 4}, seed + 100));
    return {y.detach(), x.grad()};
  }
};

SmallLayer small_layer(ParallelContext& job) {
  return {shard_place(job.layout(), job.rank()), job.group(GroupKind::tp), job.group(GroupKind::etp),
          job.group(GroupKind::ep), job.group(GroupKind::tp_ep)};
}

double difference(const Tensor& a, const Tensor& b) { return (a - b).abs().max().item<double>(); }

// Data-parallel ranks whose micro-batches have different lengths, and that shard an expert's inner size.
TEST(MoeDispatch, RanksWithDifferentNumbersOfTokensShareTheInnerSizeOfExperts) {
  for (const auto& [ep, etp] : {std::pair<int64_t, int64_t>{1, 4}, {2, 2}}) {
    SCOPED_TRACE(etp);
    const InitializeArgs sizes{.expert_model_parallel_size = ep, .expert_tensor_parallel_size = etp};
    expect_job(4, sizes, [](ParallelContext& job) {
      if (!job.torch_device().is_cpu()) return;  // the bounds are those of fp64
      SmallLayer layer = small_layer(job);
      ProcessGroup& alone = job.group(GroupKind::tp);
      SmallLayer whole({}, alone, alone, alone, alone);
      const auto tokens = [](int64_t rank) { return int64_t{3} + 2 * rank; };
      const auto seed = [](int64_t rank) { return static_cast<uint64_t>(10 + rank); };
      const auto [y, dx] = layer.run(tokens(job.rank()), seed(job.rank()));
      for (int64_t rank = 0; rank < job.world(); ++rank) {
        const auto [wanted_y, wanted_dx] = whole.run(tokens(rank), seed(rank));
        if (rank != job.rank()) continue;
        EXPECT_LT(difference(y, wanted_y), 1e-14);
        EXPECT_LT(difference(dx, wanted_dx), 1e-14);
      }
      // The router's gradient covers this rank's tokens, an expert's those of all ranks.
      const Tensor of_router = layer.parameters["router.weight"].value.grad();
      job.world_group().all_reduce(of_router).wait();
      EXPECT_LT(difference(of_router, whole.parameters["router.weight"].value.grad()), 1e-13);
      const ShardPlace place = shard_place(job.layout(), job.rank());
      const Tensor down = whole.parameters["experts.down_proj.weight"].value.grad();
      const Tensor of_ep = down.chunk(place[ShardAxis::ep].count, 0)[static_cast<size_t>(place[ShardAxis::ep].index)];
      const Tensor own = of_ep.chunk(place[ShardAxis::etp].count, 2)[static_cast<size_t>(place[ShardAxis::etp].index)];
      EXPECT_LT(difference(layer.parameters["experts.down_proj.weight"].value.grad(), own), 1e-13);
    });
  }
}

// Experts that are full, partly filled and empty, on ranks with different capacities.
TEST(MoeDispatch, RowsThatArePaddedToTheCapacityOfExpertsGiveTheSame) {
  for (const auto& [ep, etp] : {std::pair<int64_t, int64_t>{1, 1}, {4, 1}, {1, 4}, {2, 2}}) {
    SCOPED_TRACE(ep);
    const InitializeArgs sizes{.expert_model_parallel_size = ep, .expert_tensor_parallel_size = etp};
    expect_job(4, sizes, [](ParallelContext& job) {
      if (!job.torch_device().is_cpu()) return;  // the bounds are those of fp64
      for (const double factor : {0.5, 1.0, 100.0}) {
        SmallLayer plain = small_layer(job), padded = small_layer(job);
        plain.context.moe.expert_capacity_factor = padded.context.moe.expert_capacity_factor = factor;
        padded.context.moe.pad_expert_input_to_capacity = true;
        const int64_t tokens = 3 + 2 * job.rank();
        const auto [wanted_y, wanted_dx] = plain.run(tokens, static_cast<uint64_t>(10 + job.rank()));
        const auto [y, dx] = padded.run(tokens, static_cast<uint64_t>(10 + job.rank()));
        EXPECT_LT(difference(y, wanted_y), 1e-14) << factor;
        EXPECT_LT(difference(dx, wanted_dx), 1e-14) << factor;
        for (const auto& [name, parameter] : plain.parameters) {
          const Tensor grad = padded.parameters[name].value.grad();
          EXPECT_LT(difference(grad, parameter.value.grad()), 1e-13) << name << ", " << factor;
        }
      }
    });
  }
}

}  // namespace
}  // namespace concord::tests
