// The cost of a step on the platform's device (CONCORD_PLATFORM), and its overlap:
//
//   device_step adamw [MILLIONS]      AdamW on this many million parameters (bf16 values, moments in several types), as
//                                     a fraction of the bandwidth of a copy on the same device in the same run
//   device_step experts               one layer of experts without its router (24,576 tokens of 1536, 8 of 128 experts
//                                     of width 256), forward and backward with fp32 weight gradients, in TFLOP/s
//   device_step overlap [TRACE.json]  one rank of a data-parallel job: the fraction of the gradient reduction that
//                                     overlaps other work, from libtorch's profiler; the trace opens in a browser.
//                                     Start it with concord launch --nproc 2 -- device_step overlap
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/base/code_map.h"
#include "core/data_parallel/finalize_grads.h"
#include "core/mesh/initialize.h"
#include "core/models/auto_model.h"
#include "core/ops/moe/grouped_linear.h"
#include "core/ops/moe/moe_permute.h"
#include "core/ops/optimizer/adamw.h"
#include "core/ops/swiglu.h"
#include "core/optim/narrow_state.h"
#include "core/optim/optimizer.h"
#include "core/optim/rules/adamw.h"
#include "platform/loader/text.h"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;
namespace profiler = torch::autograd::profiler;

// Returns the best seconds of a call of |body|, including the wait for the device.
double best_of(const Device& device, int calls, const std::function<void()>& body) {
  double best = 1e9;
  for (int i = 0; i < calls; ++i) {
    device.synchronize();
    const auto begin = Clock::now();
    body();
    device.synchronize();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

struct StateTypes {
  const char* name;
  c10::ScalarType m, v, grads;
  bool has_remainder = false;

  // Weights and moments read and written, gradients read, 16-bit values written, and with a remainder read.
  double bytes() const {
    double sum = (has_remainder ? 4 + 4 : 8 + 2) + static_cast<double>(c10::elementSize(grads));
    for (const c10::ScalarType moment : {m, v}) {
      sum += 2 * static_cast<double>(c10::elementSize(moment)) + (moment == at::kByte ? 8.0 / kStateBlock : 0);
    }
    return sum;
  }
};

AdamWLists zero_state(const StateTypes& types, int64_t elements, const at::TensorOptions& fp32) {
  constexpr int64_t kSegment = 4 << 20;  // about the size of a layer's matrix
  AdamWLists lists;
  for (int64_t left = elements; left > 0; left -= kSegment) {
    const int64_t count = std::min(left, kSegment);
    lists.weights.push_back(types.has_remainder ? at::zeros({count}, fp32.dtype(at::kShort))
                                                : at::randn({count}, fp32));
    lists.values.push_back(at::randn({count}, fp32).to(at::kBFloat16));
    lists.grads.push_back(at::randn({count}, fp32).to(types.grads));
    const auto add = [&](c10::ScalarType type, const char* key, auto& moments, auto& scales) {
      moments.push_back(at::empty({count}, fp32.dtype(type)));
      if (type == at::kByte) scales.push_back(at::empty({count / kStateBlock}, fp32));
      zero_moment(moments.back(), type == at::kByte ? scales.back() : at::Tensor(), key);
    };
    add(types.m, "exp_avg", lists.m, lists.m_scales);
    add(types.v, "exp_avg_sq", lists.v, lists.v_scales);
  }
  return lists;
}

int measure_adamw(int64_t millions) {
  ParallelContext& job = initialize({});
  const at::NoGradGuard no_grad;
  const at::TensorOptions fp32 = at::TensorOptions(at::kFloat).device(job.torch_device());
  const int64_t count = millions * 1000000 / kStateBlock * kStateBlock;
  const auto elements = static_cast<double>(count);
  const AdamWStep step = adamw_step({0.9, 0.95, 1e-8}, 1e-4, 0.1, 1, 3);
  double peak = 0;
  {
    const at::Tensor from = at::zeros({count}, fp32), to = at::empty_like(from);
    peak = 8 * elements / best_of(job.device(), 10, [&] { to.copy_(from); });
  }
  constexpr auto kFp32 = at::kFloat, kBf16 = at::kBFloat16, kCodes = at::kByte;
  for (const StateTypes& types :
       {StateTypes{"fp32", kFp32, kFp32, kFp32}, StateTypes{"bf16", kBf16, kBf16, kFp32},
        StateTypes{"8-bit", kCodes, kCodes, kFp32}, StateTypes{"bf16 and 8-bit", kBf16, kCodes, kFp32},
        StateTypes{"8-bit, bf16 gradients", kCodes, kCodes, kBf16},
        StateTypes{"8-bit, bf16 gradients, remainder", kCodes, kCodes, kBf16, true},
        StateTypes{"bf16, bf16 gradients, remainder", kBf16, kBf16, kBf16, true}}) {
    const AdamWLists lists = zero_state(types, count, fp32);
    const double took = best_of(job.device(), 10, [&] { adamw_(lists, step); });
    const double reached = types.bytes() * elements / took;
    std::printf(
        "AdamW, moments in %s, %lld million parameters in %zu parts: %.3f ms, %.1f B each, %.0f GB/s; a copy: "
        "%.0f GB/s; share %.3f\n",
        types.name, static_cast<long long>(millions), lists.weights.size(), took * 1e3, types.bytes(), reached / 1e9,
        peak / 1e9, reached / peak);
  }
  finalize();
  return 0;
}

struct ExpertSizes {
  int64_t tokens, hidden, width, experts, k;

  // Three matrices of hidden x width for each row; 2 FLOPs per multiplication, once forward and twice backward.
  double flops() const { return 6.0 * 3 * static_cast<double>(tokens * k) * static_cast<double>(hidden * width); }
};

// A parameter whose gradient replaces that of an earlier step, as in training.
struct ExpertWeight {
  at::Tensor value;
  GradSink sink;

  ExpertWeight(at::IntArrayRef sizes, const at::TensorOptions& options)
      : value(at::randn(sizes, options).mul(0.02).requires_grad_()),
        sink{.main = at::empty(sizes, options.dtype(at::kFloat)), .is_stale = std::make_shared<bool>(true)} {}

  at::Tensor apply(const at::Tensor& rows, const at::Tensor& ends) const {
    *sink.is_stale = true;
    return grouped_linear(rows, value, ends, &sink);
  }
};

int measure_experts() {
  ParallelContext& job = initialize({});
  const bool on_host = job.torch_device().is_cpu();
  const ExpertSizes sizes = on_host ? ExpertSizes{64, 32, 16, 8, 2} : ExpertSizes{24576, 1536, 256, 128, 8};
  const auto options = at::TensorOptions(at::kBFloat16).device(job.torch_device());
  const ExpertWeight gate_up({sizes.experts, 2 * sizes.width, sizes.hidden}, options);
  const ExpertWeight down({sizes.experts, sizes.hidden, sizes.width}, options);
  const at::Tensor x = at::randn({sizes.tokens, sizes.hidden}, options).requires_grad_();
  const auto [scores, chosen] = at::rand({sizes.tokens, sizes.experts}, options.dtype(at::kFloat)).topk(sizes.k);
  const at::Tensor weights = scores.div(static_cast<double>(sizes.k)).requires_grad_();
  const at::Tensor grad = at::randn({sizes.tokens, sizes.hidden}, options);
  const auto step = [&] {
    x.mutable_grad() = at::Tensor();
    weights.mutable_grad() = at::Tensor();
    const ExpertOrder order = order_by_expert(chosen, sizes.experts);
    const at::Tensor inner = swiglu(gate_up.apply(moe_permute(x, order), order.ends));
    moe_combine(down.apply(inner, order.ends), weights, order).backward(grad);
  };
  const double took = best_of(job.device(), 10, step);
  std::printf("experts, %lld tokens, %lld of %lld: %.3f ms forward and backward, %.1f TFLOP/s\n",
              static_cast<long long>(sizes.tokens), static_cast<long long>(sizes.k),
              static_cast<long long>(sizes.experts), took * 1e3, sizes.flops() / took / 1e12);
  finalize();
  return 0;
}

struct Span {
  int64_t begin, end;
};

// Returns how much of the time of |some| overlaps with |others| (both in any order; |others| may overlap each other).
int64_t beside(const std::vector<Span>& some, std::vector<Span> others) {
  std::sort(others.begin(), others.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> joined;
  for (const Span& each : others) {
    if (!joined.empty() && each.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, each.end);
    } else {
      joined.push_back(each);
    }
  }
  int64_t total = 0;
  for (const Span& mine : some) {
    for (const Span& other : joined) {
      total += std::max<int64_t>(0, std::min(mine.end, other.end) - std::max(mine.begin, other.begin));
    }
  }
  return total;
}

void tell(const profiler::ProfilerResult& result, int rank) {
  std::vector<Span> communication, compute;
  for (const profiler::KinetoEvent& event : result.events()) {
    if (event.deviceType() == c10::DeviceType::CPU) continue;
    const Span span{static_cast<int64_t>(event.startNs()), static_cast<int64_t>(event.startNs() + event.durationNs())};
    const bool moves = event.name().find("nccl") != std::string::npos;
    (moves ? communication : compute).push_back(span);
  }
  int64_t all = 0;
  for (const Span& span : communication) all += span.end - span.begin;
  const int64_t hidden = beside(communication, compute);
  std::printf("rank %d: %zu kernels of communication, %.3f ms, of which %.3f ms (%.0f %%) beside %zu other kernels\n",
              rank, communication.size(), static_cast<double>(all) / 1e6, static_cast<double>(hidden) / 1e6,
              all > 0 ? 100.0 * static_cast<double>(hidden) / static_cast<double>(all) : 0.0, compute.size());
}

// Returns a model of 130 million parameters; a tiny one for the smoke test on the host.
std::string model_json(bool on_host) {
  const char* sizes = on_host
                          ? R"("hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 512,)"
                          : R"("hidden_size": 1024, "num_hidden_layers": 8, "intermediate_size": 2816,
                                   "vocab_size": 8192,)";
  return loader::cat("{", sizes, R"("model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"],
    "num_attention_heads": 16, "num_key_value_heads": 4, "hidden_act": "silu", "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false})");
}

int measure_overlap(const std::string& trace) {
  ParallelContext& job = initialize({});
  const bool on_host = job.torch_device().is_cpu();
  VirtualModels models = AutoModel::from_config(parse_model_config(model_json(on_host), "device_step"),
                                                {.dtype = on_host ? at::kFloat : at::kBFloat16}, job);
  DistributedDataParallel ddp(
      {models.parameters()}, job,
      {.overlap_grad_reduce = true, .ddp_average_in_collective = true, .ddp_bucket_size = 16 << 20});
  Optimizer optimizer(ddp, {});
  const at::Tensor ids = at::randint(512, {on_host ? 1 : 8, on_host ? 16 : 2048}, at::kLong);
  const auto step = [&] {
    ddp.begin_step(1);
    models[0].forward({}, {.input_ids = ids, .labels = ids}).value.mean().backward();
    finalize_grads(ddp);
    optimizer.step({.lr = 1e-4, .weight_decay = 0.1});
  };
  for (int i = 0; i < 3; ++i) step();
  job.device().synchronize();
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  std::set<torch::profiler::impl::ActivityType> activities = {torch::profiler::impl::ActivityType::CPU};
  if (!on_host) activities.insert(torch::profiler::impl::ActivityType::CUDA);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  step();
  job.device().synchronize();
  const auto result = profiler::disableProfiler();
  tell(*result, static_cast<int>(job.rank()));
  if (!trace.empty() && job.rank() == 0) result->save(trace);
  finalize();
  return 0;
}

}  // namespace
}  // namespace concord

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "", how = argc > 2 ? argv[2] : "";
  if (what == "adamw") return concord::measure_adamw(how.empty() ? 256 : std::strtoll(how.c_str(), nullptr, 10));
  if (what == "experts") return concord::measure_experts();
  if (what == "overlap") return concord::measure_overlap(how);
  std::fprintf(stderr, "usage: device_step adamw [MILLIONS] | experts | overlap [TRACE.json]\n");
  return 2;
}
