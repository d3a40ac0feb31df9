#include "trainer/data/to_micro_batch.h"

#include <ATen/ops/from_blob.h>

#include <memory>
#include <utility>

namespace concord {
namespace {

static_assert(kIgnoredToken == kIgnoredLabel);

at::Tensor tensor_of(std::vector<int64_t>&& values, int64_t rows, int64_t columns) {
  if (values.empty()) return {};
  auto owner = std::make_shared<std::vector<int64_t>>(std::move(values));
  return at::from_blob(owner->data(), {rows, columns}, [owner](void*) {}, at::TensorOptions(at::kLong));
}

}  // namespace

MicroBatch to_micro_batch(TokenBatch&& batch) {
  MicroBatch result;
  result.input_ids = tensor_of(std::move(batch.ids), batch.rows, batch.columns);
  result.labels = tensor_of(std::move(batch.labels), batch.rows, batch.columns);
  result.position_ids = tensor_of(std::move(batch.position_ids), batch.rows, batch.columns);
  result.cu_seqlens = std::move(batch.cu_seqlens);
  result.pairs = std::move(batch.samples);
  result.margins = std::move(batch.margins);
  return result;
}

std::optional<std::vector<MicroBatch>> next_micro_batches(DataLoader& loader) {
  std::optional<std::vector<TokenBatch>> batch = loader.next();
  if (!batch) return std::nullopt;
  std::vector<MicroBatch> result;
  for (TokenBatch& tokens : *batch) result.push_back(to_micro_batch(std::move(tokens)));
  return result;
}

}  // namespace concord
