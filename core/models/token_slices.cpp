#include "core/models/token_slices.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "core/base/config_error.h"
#include "core/ops/attention/attention.h"
#include "core/ops/check.h"
#include "core/parallel/context_attention.h"

namespace concord {
namespace {

using at::Tensor;

void check_like_ids(const char* what, const Tensor& tensor, const Tensor& ids) {
  if (tensor.scalar_type() == at::kLong && tensor.sizes() == ids.sizes()) return;
  throw ConfigError(fmt::format("batch: {} is {}; must be Long [{}, {}] like input_ids", what, ops::text_of(tensor),
                                ids.size(0), ids.size(1)));
}

}  // namespace

void check_batch(const MicroBatch& batch, bool with_labels) {
  const Tensor& ids = batch.input_ids;
  if (!ids.defined() || ids.scalar_type() != at::kLong || ids.dim() != 2 || ids.numel() == 0) {
    throw ConfigError(fmt::format("batch: input_ids is {}; must be Long [B, S] and not empty", ops::text_of(ids)));
  }
  if (with_labels && !batch.labels.defined()) {
    throw ConfigError("batch: labels are missing; the last stage needs them for the loss");
  }
  if (batch.labels.defined()) check_like_ids("labels", batch.labels, ids);
  if (const Tensor& given = batch.position_ids; given.defined()) {
    check_like_ids("position_ids", given.dim() == 3 && given.size(0) == 3 ? given[0] : given, ids);
  }
  if (batch.cu_seqlens.empty()) return;
  if (ids.size(0) != 1) {
    throw ConfigError(
        fmt::format("batch: input_ids has {} rows with cu_seqlens; packed sequences must be one row", ids.size(0)));
  }
  check_cu_seqlens("packed batch", batch.cu_seqlens, ids.size(1));
}

Tensor labels_that_follow(const Tensor& labels, const std::vector<int64_t>& cu_seqlens) {
  Tensor moved = labels.roll({-1}, {1});
  moved.select(1, -1).fill_(kIgnoredLabel);
  for (const int64_t end : cu_seqlens) {
    if (end > 0) moved.select(1, end - 1).fill_(kIgnoredLabel);
  }
  return moved;
}

std::vector<int64_t> sequence_lengths(const MicroBatch& batch) {
  if (batch.cu_seqlens.empty()) return {batch.input_ids.size(1)};
  std::vector<int64_t> lengths;
  for (size_t i = 1; i < batch.cu_seqlens.size(); ++i) {
    lengths.push_back(batch.cu_seqlens[i] - batch.cu_seqlens[i - 1]);
  }
  return lengths;
}

Tensor own_tokens(const Tensor& x, const MicroBatch& batch, const ProcessGroup& cp) {
  return take_context_slices(x, sequence_lengths(batch), x.dim() - 1, cp);
}

TokenPositions token_positions(const MicroBatch& batch, const ProcessGroup& cp, c10::Device device) {
  const Tensor& given = batch.position_ids;
  if (given.defined()) {
    if (given.min().item<int64_t>() < 0) throw ConfigError("batch: position_ids contains negative positions");
    const int64_t length = given.max().item<int64_t>() + 1;
    return {own_tokens(given, batch, cp).transpose(-2, -1).contiguous().to(device), length};
  }
  const std::vector<int64_t> lengths = sequence_lengths(batch);
  std::vector<Tensor> counted;
  for (const int64_t length : lengths) counted.push_back(at::arange(length, at::kLong));
  const Tensor whole = at::cat(counted).unsqueeze(0);
  return {own_tokens(whole, batch, cp).t().contiguous().to(device), *std::max_element(lengths.begin(), lengths.end())};
}

TokenPositions media_positions(const MicroBatch& batch, const MediaTokens& tokens, c10::Device device) {
  const Tensor ids = batch.input_ids.cpu().contiguous();
  const std::vector<int64_t> lengths = sequence_lengths(batch);
  MediaPositions positions(tokens, batch.media);
  std::array<std::vector<int64_t>, 3> all;
  const int64_t* next = ids.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < ids.size(0); ++row) {
    for (const int64_t length : lengths) {
      const auto sequence = positions.next({next, static_cast<size_t>(length)});
      for (size_t axis = 0; axis < all.size(); ++axis) {
        all[axis].insert(all[axis].end(), sequence[axis].begin(), sequence[axis].end());
      }
      next += length;
    }
  }
  positions.check_all_taken();
  int64_t largest = 0;
  std::vector<Tensor> axes;
  for (const std::vector<int64_t>& axis : all) {
    largest = std::max(largest, *std::ranges::max_element(axis));
    axes.push_back(at::tensor(axis, at::kLong).view(ids.sizes()).t());
  }
  return {at::stack(axes).to(device), largest + 1};
}

}  // namespace concord
