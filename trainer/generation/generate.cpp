#include "trainer/generation/generate.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>

#include "core/base/config_error.h"
#include "core/parallel/async_collectives.h"
#include "core/pipeline/decoder.h"
#include "trainer/data/to_micro_batch.h"

namespace concord {
namespace {

using at::Tensor;
using Prompts = std::span<const std::vector<int64_t>>;

// The rank that chooses: it has the last stage, and is the first of those that do.
int64_t chooser_of(const VirtualModels& models, const ParallelContext& job) {
  const RankLayout& layout = job.layout();
  const int last =
      place_stages(models.args().placement, static_cast<int>(layout.pp()), static_cast<int>(layout.vpp())).back();
  return (*layout.group_of(GroupKind::pp, 0))[last];
}

void check_prompts(const ModelConfig& config, Prompts prompts) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto count = static_cast<int64_t>(prompts[i].size());
    if (count == 0) throw ConfigError(fmt::format("prompt {} has no tokens; a model needs at least one", i + 1));
    if (count >= config.max_position_embeddings) {
      throw ConfigError(
          fmt::format("prompt {} has {} tokens, but the model has {} positions (max_position_embeddings), of which at "
                      "least one must be left for generated tokens; shorten the prompt",
                      i + 1, count, config.max_position_embeddings));
    }
    const auto [least, most] = std::minmax_element(prompts[i].begin(), prompts[i].end());
    if (*least < 0 || *most >= config.vocab_size) {
      throw ConfigError(
          fmt::format("prompt {} has the token id {}, but the model's vocabulary has {} ids; is the "
                      "tokenizer another model's?",
                      i + 1, *least < 0 ? *least : *most, config.vocab_size));
    }
  }
}

// Prompts that are computed together.
class Batch {
 public:
  Batch(VirtualModels& models, Prompts prompts, size_t first, const GenerateOptions& options, ParallelContext& job)
      : job_(job),
        options_(options),
        vocab_size_(models.config().vocab_size),
        first_(first),
        chooser_(chooser_of(models, job)),
        results_(prompts.size()),
        counts_(prompts.size(), 1) {
    const int64_t positions = models.config().max_position_embeddings;
    for (const auto& prompt : prompts) {
      const auto length = static_cast<int64_t>(prompt.size());
      longest_ = std::max(longest_, length);
      limits_.push_back(std::min(options.max_new_tokens, positions - length));
    }
    decoder_.emplace(models, job, static_cast<int64_t>(prompts.size()),
                     std::min(longest_ + options.max_new_tokens, positions));
    tokens_ = padded(prompts);
  }

  void add_media(std::span<const BatchMedia> media) {
    TokenBatch all;
    for (const BatchMedia& each : media) all.media.append(each);
    const MicroBatch batch = to_micro_batch(std::move(all));
    if (!batch.pixel_values.defined()) return;
    tokens_.pixel_values = on_device(batch.pixel_values);
    tokens_.media = batch.media;
  }

  std::vector<Generated> run(const std::vector<int64_t>& ends, const OnToken& on_token) {
    while (std::ranges::count(counts_, 0) < std::ssize(counts_)) {
      const Tensor next = chosen(decoder_->step(tokens_));
      const bool is_changed = take(next.to(at::kCPU), ends, on_token) || tokens_.ids.size(1) > 1;
      tokens_ = {next.unsqueeze(1), is_changed ? on_device(at::tensor(counts_, at::kLong)) : tokens_.counts};
    }
    return std::move(results_);
  }

 private:
  Tensor on_device(const Tensor& x) const { return x.to(job_.torch_device()); }

  NewTokens padded(Prompts prompts) const {
    const Tensor ids = at::full({std::ssize(prompts), longest_}, 0, at::kLong);
    std::vector<int64_t> lengths;
    for (size_t b = 0; b < prompts.size(); ++b) {
      std::ranges::copy(prompts[b], ids.mutable_data_ptr<int64_t>() + static_cast<int64_t>(b) * longest_);
      lengths.push_back(std::ssize(prompts[b]));
    }
    return {on_device(ids), on_device(at::tensor(lengths, at::kLong))};
  }

  // The next token of each row, the same on all ranks. |own| are the logits of this rank's part of the vocabulary, on
  // ranks of the last stage.
  Tensor chosen(const Tensor& own) {
    const Tensor logits =
        own.defined() ? gather(own, job_.group(GroupKind::tp), 1).take().narrow(1, 0, vocab_size_) : own;
    const auto rows = static_cast<int64_t>(results_.size());
    Tensor next = at::empty({rows}, at::TensorOptions(at::kLong).device(job_.torch_device()));
    if (job_.rank() == chooser_) next = options_.sampling.is_greedy() ? at::argmax(logits, -1) : sampled(logits);
    if (job_.world() > 1) job_.world_group().broadcast(next, chooser_).wait();
    return next;
  }

  Tensor sampled(const Tensor& logits) const {
    const Tensor host = logits.to(at::kCPU, at::kFloat).contiguous();
    const auto columns = static_cast<size_t>(host.size(1));
    const Tensor next = at::full({host.size(0)}, 0, at::kLong);
    for (size_t b = 0; b < results_.size(); ++b) {
      if (counts_[b] == 0) continue;
      const double uniform =
          sampling_uniform(options_.sampling.seed, static_cast<int64_t>(first_ + b), std::ssize(results_[b].ids));
      const std::span<const float> row(host.const_data_ptr<float>() + b * columns, columns);
      next.mutable_data_ptr<int64_t>()[b] = sample_token(row, options_.sampling, uniform);
    }
    return on_device(next);
  }

  // Whether a row has ended.
  bool take(const Tensor& next, const std::vector<int64_t>& ends, const OnToken& on_token) {
    const std::vector<int64_t> before = counts_;
    for (size_t b = 0; b < results_.size(); ++b) {
      if (counts_[b] == 0) continue;
      const int64_t id = next.const_data_ptr<int64_t>()[b];
      Generated& row = results_[b];
      row.is_ended = std::ranges::find(ends, id) != ends.end();
      if (!row.is_ended) {
        row.ids.push_back(id);
        if (on_token) on_token(first_ + b, id);
      }
      if (row.is_ended || std::ssize(row.ids) == limits_[b]) counts_[b] = 0;
    }
    return counts_ != before;
  }

  ParallelContext& job_;
  const GenerateOptions& options_;
  int64_t vocab_size_;
  size_t first_;  // number of the first prompt
  int64_t chooser_;
  int64_t longest_ = 0;
  std::vector<int64_t> limits_;  // maximum number of new tokens per row
  std::optional<Decoder> decoder_;
  NewTokens tokens_;  // of the next step
  std::vector<Generated> results_;
  std::vector<int64_t> counts_;  // 0: the row has ended
};

}  // namespace

std::vector<Generated> generate(VirtualModels& models, const std::vector<std::vector<int64_t>>& prompts,
                                const std::vector<int64_t>& ends, const GenerateOptions& options, ParallelContext& job,
                                const OnToken& on_token, const std::vector<BatchMedia>& media) {
  check_sampling(options.sampling);
  if (options.max_new_tokens < 1 || options.batch_size < 1) {
    throw ConfigError(fmt::format("max_new_tokens is {} and batch_size {}; both must be >= 1", options.max_new_tokens,
                                  options.batch_size));
  }
  check_prompts(models.config(), prompts);
  std::vector<Generated> results;
  for (size_t first = 0; first < prompts.size(); first += static_cast<size_t>(options.batch_size)) {
    const size_t rows = std::min(static_cast<size_t>(options.batch_size), prompts.size() - first);
    Batch batch(models, Prompts(prompts).subspan(first, rows), first, options, job);
    if (!media.empty()) batch.add_media(std::span(media).subspan(first, rows));
    std::ranges::move(batch.run(ends, on_token), std::back_inserter(results));
  }
  return results;
}

std::vector<std::vector<int64_t>> from_first_rank(const std::vector<std::vector<int64_t>>& lists,
                                                  ParallelContext& job) {
  if (job.world() == 1) return lists;
  const auto shared = [&](const std::vector<int64_t>& numbers, int64_t count) {
    Tensor there = at::full({count}, 0, at::kLong);
    if (job.rank() == 0) std::ranges::copy(numbers, there.mutable_data_ptr<int64_t>());
    there = there.to(job.torch_device());
    if (count > 0) job.world_group().broadcast(there, 0).wait();
    const Tensor host = there.to(at::kCPU);
    return std::vector<int64_t>(host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + count);
  };
  std::vector<int64_t> lengths, flat;
  for (const auto& list : lists) {
    lengths.push_back(std::ssize(list));
    flat.insert(flat.end(), list.begin(), list.end());
  }
  lengths = shared(lengths, shared({std::ssize(lists)}, 1).front());
  flat = shared(flat, std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  std::vector<std::vector<int64_t>> result;
  auto at = flat.begin();
  for (const int64_t length : lengths) {
    result.emplace_back(at, at + length);
    at += length;
  }
  return result;
}

}  // namespace concord
