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

void add_media(BatchMedia&& media, MicroBatch* batch) {
  int64_t patches = 0;
  for (const MediaGrids* grids : {&media.images, &media.videos}) {
    for (const MediaGrid& grid : *grids) patches += grid.patches();
  }
  batch->media.images = std::move(media.images);
  batch->media.videos = std::move(media.videos);
  batch->media.seconds_per_group = std::move(media.seconds_per_group);
  auto owner = std::make_shared<std::vector<float>>(std::move(media.image_pixels));
  owner->insert(owner->end(), media.video_pixels.begin(), media.video_pixels.end());
  const auto all = static_cast<int64_t>(owner->size());
  batch->pixel_values = at::from_blob(owner->data(), {patches, all / patches}, [owner](void*) {}, at::kFloat);
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
  if (!batch.media.empty()) add_media(std::move(batch.media), &result);
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
