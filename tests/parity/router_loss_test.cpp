// Router losses: transformers' by value and gradient, Megatron's by their definition, all by finite differences, and
// all the same with every layout.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/softmax.h>
#include <gmock/gmock.h>

#include <cmath>

#include "core/base/config_error.h"
#include "tests/parity/hf_golden.h"

namespace concord::tests {
namespace {

Layout with_losses(Layout base, const MoeArgs& moe) {
  base.args.options.moe = moe;
  return base;
}

Layout recomputing(Layout base, const RecomputeArgs& recompute) {
  base.args.options.recompute = recompute;
  return base;
}

TensorMap expected_of(const std::string& model) {
  return read_tensors((golden("hf") / model / "expected.safetensors").string());
}

// Probes |model|'s golden batch in this process.
TensorMap probed(const std::string& model, const Layout& layout, const TensorMap& expected) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/result.safetensors";
  run_golden(golden("hf") / model, layout, golden_batch(expected),
             [&](const ProbeResult& result) { write_tensors(file, result); });
  return read_tensors(file);
}

double router_loss_of(const TensorMap& result) { return result.at("router_loss").item<double>(); }

// transformers with output_router_logits: loss_total = loss + router_aux_loss_coef * aux_loss, and its gradients.
TensorMap with_aux_loss(const TensorMap& expected) {
  TensorMap total;
  for (const auto& [name, tensor] : expected) {
    if (name.starts_with("grad_total.")) total["grad." + name.substr(11)] = tensor;
    if (!name.starts_with("grad")) total[name] = tensor;
  }
  return total;
}

TEST(RouterLoss, IsThatOfTransformersUnderEveryLayout) {
  const MoeArgs pooled{.router_load_balancing_type = Balancing::pooled};
  const RecomputeArgs full{
      .granularity = RecomputeGranularity::full, .method = RecomputeMethod::uniform, .num_layers = 1};
  const RecomputeArgs mlp{.granularity = RecomputeGranularity::selective, .modules = {RecomputeModule::mlp}};
  for (const char* model : {"qwen3-moe-tiny", "qwen2-moe-tiny", "mixtral-tiny"}) {
    const TensorMap expected = with_aux_loss(expected_of(model));
    const double aux = (expected.at("loss_total") - expected.at("loss")).item<double>();
    for (const Layout& each :
         {layout("one process", 1, 1), layout("tp 2", 2, 1), layout("tp 2, cp 2, sequence parallel", 2, 2, true),
          recomputing(layout("full", 1, 1), full), recomputing(layout("mlp, cp 2", 1, 2), mlp),
          with_experts(layout("cp 2, ep 2", 1, 2), 2, 1), with_experts(layout("tp 2, ep 2", 2, 1, true), 2, 1),
          layout("pp 2", 1, 1, false, 2), with_experts(layout("pp 2, cp 2, ep 2", 1, 2, false, 2), 2, 1),
          recomputing(layout("pp 2, full", 1, 1, false, 2), full)}) {
      SCOPED_TRACE(std::string(model) + ", " + each.name);
      const TensorMap result = probed(model, with_losses(each, pooled), expected);
      expect_parity(result, expected);
      EXPECT_NEAR(router_loss_of(result), aux, 2e-6);
    }
  }
}

TEST(RouterLoss, IsThereIfTheConfigAsksForItAndNoArgumentForbidsIt) {
  const TensorMap expected = with_aux_loss(expected_of("mixtral-tiny"));
  Layout asked = layout("output_router_logits", 1, 1);
  asked.spoil_config = [](ModelConfig& c) { c.experts.output_router_logits = true; };
  expect_parity(probed("mixtral-tiny", asked, expected), expected);
  const TensorMap without =
      probed("mixtral-tiny", with_losses(asked, {.router_load_balancing_type = Balancing::none}), expected);
  EXPECT_GT(share_of_bounds(without, expected), 10);
  EXPECT_FALSE(without.contains("router_loss"));
}

// The definitions of core/models/layers/router_losses.h, computed from transformers' router logits [layers, B S, E].
double loss_by_definition(const at::Tensor& logits, int64_t rows, const MoeArgs& moe, int64_t k) {
  const int64_t experts = logits.size(2), parts = moe.router_load_balancing_type == Balancing::sequence_aux ? rows : 1;
  double loss = 0;
  for (const at::Tensor& layer : logits.to(at::kDouble).unbind(0)) {
    for (const at::Tensor& tokens : layer.chunk(parts, 0)) {
      const at::Tensor scores = tokens.softmax(-1);
      const at::Tensor smallest = std::get<0>(scores.topk(k, -1)).select(1, k - 1).unsqueeze(1);
      const at::Tensor share = scores.ge(smallest).to(at::kDouble).mean(0) / k;
      const double of_part = (scores.mean(0) * share).sum().item<double>() * static_cast<double>(experts);
      loss += moe.aux_loss_coeff * of_part / static_cast<double>(parts);
    }
    loss += moe.z_loss_coeff * layer.logsumexp(at::IntArrayRef{-1}).square().mean().item<double>();
  }
  return loss;
}

// The batch has two rows, so that with one row per data-parallel rank the loss per sequence is the same. So is the loss
// that counts over these ranks; for one micro-batch it equals aux_loss.
TEST(RouterLoss, IsMegatronsAndHasTheSameGradientsUnderEveryLayout) {
  const TensorMap expected = expected_of("qwen3-moe-tiny");
  for (const Balancing type : {Balancing::aux, Balancing::sequence_aux, Balancing::global_aux}) {
    const MoeArgs moe{.router_load_balancing_type = type, .aux_loss_coeff = 0.5, .z_loss_coeff = 0.25};
    const double loss = loss_by_definition(expected.at("router_logits"), 2, moe, 2);
    std::vector<Layout> layouts{layout("tp 2", 2, 1), layout("pp 2", 1, 1, false, 2),
                                layout("tp 2, cp 2, sequence parallel", 2, 2, true)};
    layouts.push_back(with_experts(layout("tp 2, cp 2, ep 2, etp 2, sequence parallel", 2, 2, true), 2, 2));
    if (type != Balancing::aux) {
      layouts.push_back(layout("dp 2", 1, 1, false, 1, 1, 2));
      layouts.push_back(with_experts(layout("dp 2, ep 2", 1, 1, false, 1, 1, 2), 2, 1));
    }
    const TensorMap one = probed("qwen3-moe-tiny", with_losses(layout("one process", 1, 1), moe), expected);
    EXPECT_NEAR(router_loss_of(one), loss, 5e-6);
    for (const Layout& each : layouts) {
      SCOPED_TRACE(std::string(name_of(type)) + ", " + each.name);
      const TensorMap result = probed("qwen3-moe-tiny", with_losses(each, moe), expected);
      EXPECT_NEAR(router_loss_of(result), loss, 5e-6);
      for (const auto& [name, gradient] : result) {
        if (!name.starts_with("grad.")) continue;
        EXPECT_LE((gradient - one.at(name)).norm().item<double>(), 1e-5 * one.at(name).norm().item<double>()) << name;
      }
    }
  }
}

// Along row 2 of the first router, by a central difference in fp64; the step is too small to change a token's experts.
TEST(RouterLoss, HasGradientsThatAreItsSlopes) {
  constexpr double kStep = 1e-5;
  const TensorMap expected = expected_of("qwen2-moe-tiny");
  for (const Balancing type : {Balancing::aux, Balancing::sequence_aux, Balancing::global_aux, Balancing::pooled}) {
    Layout each = with_losses(layout(name_of(type).data(), 1, 1),
                              {.router_load_balancing_type = type, .aux_loss_coeff = 0.5, .z_loss_coeff = 0.25});
    each.args.dtype = at::kDouble;
    const auto moved = [&](double step) {
      each.spoil_model = [step](VirtualModels& all) {
        const at::NoGradGuard no_grad;
        for (Parameter* parameter : all.parameters()) {
          if (parameter->spec.name.ends_with("layers.0.mlp.router.weight")) parameter->value[2].add_(step);
        }
      };
      return probed("qwen2-moe-tiny", each, expected);
    };
    const auto total_at = [&](double step) {
      const TensorMap result = moved(step);
      return result.at("loss").item<double>() + router_loss_of(result);
    };
    const double slope = (total_at(kStep) - total_at(-kStep)) / (2 * kStep);
    const double gradient = moved(0).at("grad.model.layers.0.mlp.gate.weight")[2].sum().item<double>();
    EXPECT_NEAR(gradient, slope, 1e-7 * (1 + std::abs(slope))) << name_of(type);
  }
}

TEST(RouterLoss, OfTransformersIsRefusedForSigmoids) {
  ExpertConfig sigmoids;
  sigmoids.sigmoid_scores = true;
  EXPECT_THAT([&] { router_losses({.router_load_balancing_type = Balancing::pooled}, sigmoids); },
              ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("to seq_aux_loss, aux_loss")));
}

}  // namespace
}  // namespace concord::tests
