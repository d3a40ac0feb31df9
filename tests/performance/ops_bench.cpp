// Operators forward and backward on the host, each compared with libtorch's own composition, in the same process with
// the same threads, alternating.
//
//   ops_bench [--json] [filter]      rows whose name contains the filter
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/ops/attention/attention.h"
#include "core/ops/attention/rope.h"
#include "core/ops/attention/rope_angles.h"
#include "core/ops/dropout.h"
#include "core/ops/embedding.h"
#include "core/ops/linear.h"
#include "core/ops/loss/cross_entropy.h"
#include "core/ops/norm/layer_norm.h"
#include "core/ops/norm/rms_norm.h"
#include "core/ops/swiglu.h"
#include "core/optim/rules/update_rule.h"

namespace concord {
namespace {

using at::Tensor;
using Clock = std::chrono::steady_clock;
using Run = std::function<void()>;

struct Row {
  std::string name;
  double ours;
  double peer;
  const char* unit;
  double goal;  // minimum of peer / ours
};

struct Case {
  std::string name;
  double goal;
  Run ours;
  Run peer;
};

double milliseconds(const Run& run) {
  const auto begin = Clock::now();
  run();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Alternates, so that other load affects both; ours, peer, peer, ours, so that both equally often get the memory that
// the other has just freed.
Row measure(const Case& each) {
  for (int i = 0; i < 2; ++i) {
    each.ours();
    each.peer();
  }
  const double once = milliseconds(each.ours) + milliseconds(each.peer);
  const int rounds = std::clamp(static_cast<int>(3000 / once), 7, 201);
  std::vector<double> ours, peer;
  for (int i = 0; i < rounds; ++i) {
    if (i % 2 == 0) ours.push_back(milliseconds(each.ours));
    peer.push_back(milliseconds(each.peer));
    if (i % 2 == 1) ours.push_back(milliseconds(each.ours));
  }
  return {each.name, median(ours), median(peer), "ms", each.goal};
}

// The peak memory of libtorch's host allocator while |run| runs, beyond what it held before.
class PeakMemory : public c10::MemoryReportingInfoBase {
 public:
  static double megabytes(const Run& run) {
    const auto self = std::make_shared<PeakMemory>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, self);
    run();
    return static_cast<double>(self->peak_) / 1e6;
  }
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    held_ += bytes;
    peak_ = std::max(peak_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  int64_t held_ = 0;
  int64_t peak_ = 0;
};

// ------------------------------------------------------------------------------------------------------------ cases

Tensor leaf(std::vector<int64_t> sizes) { return at::randn(sizes).requires_grad_(true); }

// Forward and backward of |make| with respect to |inputs|.
Run both(std::vector<Tensor> inputs, const std::function<Tensor()>& make) {
  const Tensor grad = at::randn(make().sizes());
  return [inputs, make, grad] { torch::autograd::grad({make()}, inputs, {grad}); };
}

Case rms_norm_case() {
  const Tensor x = leaf({2048, 1024}), w = leaf({1024});
  return {"ops/rms_norm/2048x1024", 1, both({x, w}, [=] { return rms_norm(x, w, 1e-6); }),
          both({x, w}, [=] { return at::rms_norm(x, {1024}, w, 1e-6); })};
}

Case layer_norm_case() {
  const Tensor x = leaf({2048, 1024}), w = leaf({1024}), b = leaf({1024});
  return {"ops/layer_norm/2048x1024", 1, both({x, w, b}, [=] { return layer_norm(x, w, b, 1e-6); }),
          both({x, w, b}, [=] { return at::layer_norm(x, {1024}, w, b, 1e-6); })};
}

Case rope_case() {
  const Tensor x = leaf({1, 2048, 16, 64});
  const RopeAngles angles = rope_angles(rope_frequencies({.head_dim = 64}), at::arange(2048, at::kLong));
  const auto twice = [](const Tensor& t) { return at::cat({t, t}, -1).unsqueeze(1); };
  const Tensor cos = twice(angles.cos), sin = twice(angles.sin);
  const auto theirs = [=] {
    const Tensor turned = at::cat({-x.narrow(-1, 32, 32), x.narrow(-1, 0, 32)}, -1);
    return x * cos + turned * sin;
  };
  return {"ops/rope/2048x16x64", 1, both({x}, [=] { return rope(x, angles.cos, angles.sin); }), both({x}, theirs)};
}

Case swiglu_case() {
  const Tensor x = leaf({1024, 2 * 2816});
  const auto theirs = [=] { return at::silu(x.narrow(-1, 0, 2816)) * x.narrow(-1, 2816, 2816); };
  return {"ops/swiglu/1024x2816", 1, both({x}, [=] { return swiglu(x); }), both({x}, theirs)};
}

// Grouped heads, in the layout of libtorch's flash attention.
Case attention_case(const char* name, int64_t tokens, int64_t kv_heads, int64_t window, std::vector<int64_t> cuts) {
  const Tensor q = leaf({1, tokens, 16, 64}), k = leaf({1, tokens, kv_heads, 64}), v = leaf({1, tokens, kv_heads, 64});
  std::optional<Tensor> mask;
  if (window > 0 || !cuts.empty()) {
    const Tensor i = at::arange(tokens).unsqueeze(1), j = at::arange(tokens).unsqueeze(0);
    mask = (j <= i).logical_and(j > i - (window > 0 ? window : tokens));
    for (const int64_t cut : cuts) mask = mask->logical_and((i < cut) == (j < cut));
  }
  const auto theirs = [=] {
    return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, 0.0, !mask,
                                            std::nullopt, /*enable_gqa=*/kv_heads != 16)
        .transpose(1, 2);
  };
  const auto ours = [=] { return attention(q, k, v, {.window = window}, cuts); };
  return {name, 1, both({q, k, v}, ours), both({q, k, v}, theirs)};
}

Case embedding_case() {
  const Tensor table = leaf({32000, 512}), ids = at::randint(32000, {2048}, at::kLong);
  return {"ops/embedding/32000x512/2048", 1, both({table}, [=] { return concord::embedding(table, ids); }),
          both({table}, [=] { return at::embedding(table, ids); })};
}

// The weight gradient is accumulated in an fp32 buffer in both cases.
Case linear_case() {
  const Tensor x = leaf({1024, 1024}), w = leaf({2048, 1024}), grad = at::randn({1024, 2048});
  const GradSink sink{at::zeros({2048, 1024})};
  const Tensor main = at::zeros({2048, 1024});
  const auto ours = [=] {
    linear(x, w, {}, &sink).backward(grad);
    x.mutable_grad().reset();
  };
  const auto theirs = [=] {
    const auto grads = torch::autograd::grad({at::linear(x, w)}, {x, w}, {grad});
    const at::NoGradGuard no_grad;
    Tensor(main).add_(grads[1]);
  };
  return {"ops/linear/1024x1024x2048/main_grad", 1, ours, theirs};
}

Case dropout_case() {
  const Tensor x = leaf({2048, 1024});
  const auto generator = std::make_shared<Generator>(7);
  return {"ops/dropout/2048x1024", 1, both({x}, [=] { return dropout(x, 0.1, *generator); }),
          both({x}, [=] { return at::dropout(x, 0.1, true); })};
}

// The update of 16 million elements in host memory, as for an offloaded optimizer. |type| is that of the gradients, and
// of parameters that follow the weights; libtorch's AdamW has neither, so with bf16 it gets gradients in fp32.
Case adamw_case(const char* name, at::ScalarType type) {
  constexpr int64_t kElements = int64_t{1} << 24;
  const std::shared_ptr<UpdateRule> rule = make_rule({});
  const auto segment = std::make_shared<Segment>(Segment{.range = {0, kElements}, .weights = at::randn({kElements})});
  segment->grads = at::randn({kElements}).to(type);
  segment->moments = {at::zeros({kElements}), at::zeros({kElements})};
  if (type != at::kFloat) segment->values = at::zeros({kElements}, type);
  const Tensor weights = at::randn({kElements}), m = at::zeros({kElements}), v = at::zeros({kElements});
  const Tensor grads = segment->grads.to(at::kFloat), steps = at::ones({1});
  const auto ours = [=] {
    Segment* const list[] = {segment.get()};
    rule->step_on_host(list, {.lr = 1e-3, .weight_decay = 0.1});
  };
  const auto theirs = [=] {
    at::_fused_adamw_({weights}, {grads}, {m}, {v}, {}, {steps}, 1e-3, 0.9, 0.999, 0.1, 1e-8, /*amsgrad=*/false,
                      /*maximize=*/false);
  };
  return {name, 1, ours, theirs};
}

struct LossRuns {
  Run ours;
  Run peer;
};

// Computes the logits again each time, like a model, so that overwriting them is fair.
LossRuns loss_runs() {
  const Tensor values = at::randn({512, 32000}), labels = at::randint(32000, {512}, at::kLong);
  const auto logits = [values] { return values.clone().requires_grad_(true); };
  const auto ours = [=] {
    const Tensor x = logits();
    torch::autograd::grad({cross_entropy(x, labels, {.overwrite_logits = true}).mean()}, {x});
  };
  const auto theirs = [=] {
    const Tensor x = logits();
    torch::autograd::grad({at::nll_loss(at::log_softmax(x, -1), labels)}, {x});
  };
  return {ours, theirs};
}

// Excludes the time of computing the logits.
Case cross_entropy_case() {
  const Tensor x = leaf({512, 32000}), labels = at::randint(32000, {512}, at::kLong);
  return {"ops/cross_entropy/512x32000", 1.5,
          [=] { torch::autograd::grad({cross_entropy(x, labels, {.overwrite_logits = true}).mean()}, {x}); },
          [=] { torch::autograd::grad({at::nll_loss(at::log_softmax(x, -1), labels)}, {x}); }};
}

constexpr const char* kMemory = "ops/cross_entropy/512x32000/peak memory with the logits";

Row memory_row() {
  const LossRuns runs = loss_runs();
  return {kMemory, PeakMemory::megabytes(runs.ours), PeakMemory::megabytes(runs.peer), "MB", 2};
}

std::vector<std::function<Case()>> cases() {
  return {rms_norm_case,
          layer_norm_case,
          rope_case,
          swiglu_case,
          [] { return attention_case("ops/attention/1024x16x64", 1024, 16, 0, {}); },
          [] { return attention_case("ops/attention/1024x16x64/4 kv heads", 1024, 4, 0, {}); },
          [] { return attention_case("ops/attention/2048x16x64/window 256", 2048, 16, 256, {}); },
          [] { return attention_case("ops/attention/2048x16x64/packed", 2048, 16, 0, {0, 700, 1000, 1600, 2048}); },
          embedding_case,
          linear_case,
          dropout_case,
          [] { return adamw_case("ops/adamw/16M", at::kFloat); },
          [] { return adamw_case("ops/adamw/16M/bf16 gradients and parameters", at::kBFloat16); },
          cross_entropy_case};
}

// ----------------------------------------------------------------------------------------------------------- output

nlohmann::json row_json(const Row& row) {
  const double ratio = row.peer / row.ours;
  return {{"name", row.name}, {"ours", row.ours}, {"peer", row.peer},        {"unit", row.unit},
          {"ratio", ratio},   {"goal", row.goal}, {"met", ratio >= row.goal}};
}

void print(const Row& row) {
  const double ratio = row.peer / row.ours;
  std::printf("%-58s %10.3f %10.3f %s  ratio %6.2f  goal %4.1f  %s\n", row.name.c_str(), row.ours, row.peer, row.unit,
              ratio, row.goal, ratio >= row.goal ? "met" : "NOT MET");
  std::fflush(stdout);
}

// Calls |report| with each row as soon as it is measured.
void measure_rows(const std::string& filter, const std::function<void(const Row&)>& report) {
  for (const auto& make : cases()) {
    const Case each = make();
    if (each.name.find(filter) != std::string::npos) report(measure(each));
  }
  if (std::string(kMemory).find(filter) != std::string::npos) report(memory_row());
}

}  // namespace
}  // namespace concord

int main(int argc, char** argv) {
  bool json = false;
  std::string filter;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else {
      filter = argv[i];
    }
  }
  setenv("CONCORD_PLUGIN_PATH", PLUGINS, 0);
  nlohmann::json document = nlohmann::json::array();
  concord::measure_rows(filter, [&](const concord::Row& row) {
    if (json) document.push_back(concord::row_json(row));
    if (!json) concord::print(row);
  });
  if (json) std::printf("%s\n", document.dump(1).c_str());
  return 0;
}
