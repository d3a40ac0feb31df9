#include "trainer/evaluation/predictions.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>

#include "core/base/parse_json.h"
#include "trainer/report/files.h"

namespace concord {
namespace {

constexpr int64_t kTokenNumbers = 5;  // of a token

// |own| of all ranks of |group|, one after another.
at::Tensor gathered_numbers(ProcessGroup& group, at::Tensor own, c10::Device device) {
  if (group.size() == 1) return own;
  const at::Tensor sizes = at::empty({group.size()}, at::TensorOptions(at::kLong).device(device));
  group.all_gather(sizes, at::full({1}, own.numel(), sizes.options())).wait();
  const at::Tensor counts = sizes.cpu();
  const int64_t longest = counts.max().item<int64_t>();
  const at::Tensor padded = at::zeros({longest}, at::TensorOptions(at::kDouble).device(device));
  padded.narrow(0, 0, own.numel()).copy_(own);
  const at::Tensor all = at::empty({group.size() * longest}, padded.options());
  group.all_gather(all, padded).wait();
  const at::Tensor host = all.cpu();
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    parts.push_back(host.narrow(0, rank * longest, counts.const_data_ptr<int64_t>()[rank]));
  }
  return at::cat(parts);
}

nlohmann::json bits_of(const NamedValues& values) {  // JSON has no NaN
  nlohmann::json bits = nlohmann::json::array();
  for (const auto& [name, value] : values) bits.push_back({name, std::bit_cast<int64_t>(value)});
  return bits;
}

}  // namespace

double PredictedSample::loss() const {
  if (log_probs.empty()) return 0;
  return -std::accumulate(log_probs.begin(), log_probs.end(), 0.0) / static_cast<double>(log_probs.size());
}

void Predictions::add(const ModelChunk& chunk, std::span<const MicroBatch> batches, std::span<const at::Tensor> losses,
                      std::span<const at::Tensor> predicted, int64_t first_row, int64_t samples) {
  std::vector<double> own;
  const int64_t ranks = job_.layout().dp(), rank = job_.coordinates().dp;
  for (size_t i = 0; i < batches.size(); ++i) {
    const MicroBatch& batch = batches[i];
    const int64_t rows = batch.input_ids.size(0), tokens = batch.input_ids.size(1);
    const int64_t first = first_row + (static_cast<int64_t>(i) * ranks + rank) * rows;
    const auto on_host = [](const at::Tensor& x) { return x.cpu().contiguous(); };
    const at::Tensor places = on_host(chunk.own_tokens(at::arange(tokens).expand({rows, tokens}).contiguous(), batch));
    const at::Tensor labels = on_host(chunk.own_tokens(batch.labels.cpu(), batch));
    const at::Tensor loss = on_host(losses[i].to(at::kDouble)), ranked = on_host(predicted[i].t());
    for (int64_t t = 0; t < labels.numel(); ++t) {
      const int64_t label = labels.const_data_ptr<int64_t>()[t], index = first + t / labels.size(1);
      if (label == kIgnoredLabel || index >= samples) continue;
      own.insert(own.end(), {static_cast<double>(index), static_cast<double>(places.const_data_ptr<int64_t>()[t]),
                             static_cast<double>(label), static_cast<double>(ranked.const_data_ptr<int64_t>()[t]),
                             -loss.const_data_ptr<double>()[t]});
    }
  }
  const at::Tensor numbers = at::empty({static_cast<int64_t>(own.size())}, at::kDouble);
  std::copy(own.begin(), own.end(), numbers.mutable_data_ptr<double>());
  const at::Tensor all = gathered_numbers(job_.group(GroupKind::dp_cp), numbers, job_.torch_device());
  for (int64_t i = 0; i < all.numel(); i += kTokenNumbers) {
    const double* n = all.const_data_ptr<double>() + i;
    tokens_.push_back({n[0], n[1], n[2], n[3], n[4]});
  }
}

std::vector<PredictedSample> Predictions::take(int64_t samples) {
  std::vector<Token> tokens = std::exchange(tokens_, {});
  std::sort(tokens.begin(), tokens.end(), [](const Token& a, const Token& b) {
    return std::pair(a.index, a.position) < std::pair(b.index, b.position);
  });
  std::vector<PredictedSample> result(static_cast<size_t>(samples));
  for (size_t i = 0; i < result.size(); ++i) result[i].index = static_cast<int64_t>(i);
  for (const Token& token : tokens) {
    PredictedSample& sample = result[static_cast<size_t>(token.index)];
    sample.labels.push_back(static_cast<int64_t>(token.label));
    sample.predictions.push_back(static_cast<int64_t>(token.prediction));
    sample.log_probs.push_back(token.log_prob);
  }
  return result;
}

void write_predictions(const std::filesystem::path& file, const std::vector<PredictedSample>& samples) {
  std::string text;
  for (const PredictedSample& sample : samples) {
    text += nlohmann::ordered_json{{"index", sample.index},
                                   {"loss", sample.loss()},
                                   {"labels", sample.labels},
                                   {"predictions", sample.predictions},
                                   {"log_probs", sample.log_probs}}
                .dump();
    text += '\n';
  }
  replace_file(file.string(), text);
}

NamedValues of_last_stage(ParallelContext& job, const NamedValues& values) {
  std::string own;
  if (job.coordinates().pp == job.layout().pp() - 1) own = bits_of(values).dump();
  ProcessGroup& pp = job.group(GroupKind::pp);
  const at::TensorOptions device(job.torch_device());
  const at::Tensor size = at::full({1}, static_cast<int64_t>(own.size()), device.dtype(at::kLong));
  pp.all_reduce(size, ReduceOp::kMax).wait();
  at::Tensor bytes = at::zeros({size.item<int64_t>()}, at::kInt);
  for (size_t i = 0; i < own.size(); ++i) bytes.mutable_data_ptr<int32_t>()[i] = static_cast<uint8_t>(own[i]);
  bytes = bytes.to(job.torch_device());
  pp.all_reduce(bytes, ReduceOp::kMax).wait();
  const at::Tensor host = bytes.cpu();
  std::string text(static_cast<size_t>(host.numel()), ' ');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(host.const_data_ptr<int32_t>()[i]);
  NamedValues all;
  const auto named = parse_json(text, "predictions").get<std::vector<std::pair<std::string, int64_t>>>();
  for (const auto& [name, bits] : named) {
    all.emplace_back(name, std::bit_cast<double>(bits));
  }
  return all;
}

}  // namespace concord
