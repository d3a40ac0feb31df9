#include "core/optim/plan/stream_moves.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/code_map.h"

namespace concord {

int64_t stream_aligned(int64_t bytes) { return (bytes + kStreamAlignment - 1) / kStreamAlignment * kStreamAlignment; }

int64_t streamed_bytes(const StatePlan& plan, int64_t elements) {
  int64_t bytes = 0;
  for (const StatePlan::Tensor& tensor : plan.tensors) {
    const int64_t all = tensor.bytes(elements);
    const bool scaled = tensor.main == MainParamsType::fp32 && has_scales(tensor.type);
    const int64_t scales = scaled ? elements / kStateBlock * static_cast<int64_t>(sizeof(float)) : 0;
    bytes += stream_aligned(all - scales) + stream_aligned(scales);
  }
  return bytes;
}

std::vector<StreamChunk> pack_chunks(std::span<const StreamPart> parts, int64_t most) {
  std::vector<StreamChunk> chunks;
  int64_t elements = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (chunks.empty() || elements + parts[i].elements > most) {
      const int64_t offset = chunks.empty() ? 0 : chunks.back().offset + chunks.back().bytes;
      chunks.push_back({i, i, offset, 0});
      elements = 0;
    }
    chunks.back().end = i + 1;
    chunks.back().bytes += parts[i].bytes;
    elements += parts[i].elements;
  }
  return chunks;
}

int64_t host_bytes(std::span<const StreamChunk> chunks) {
  return chunks.empty() ? 0 : chunks.back().offset + chunks.back().bytes;
}

int64_t stream_buffer_bytes(std::span<const StreamChunk> chunks) {
  int64_t largest = 0;
  for (const StreamChunk& chunk : chunks) largest = std::max(largest, chunk.bytes);
  return largest * std::min(kStreamBuffers, static_cast<int64_t>(chunks.size()));
}

std::vector<StreamMove> stream_moves(int64_t chunks) {
  using enum StreamMove::Kind;
  std::vector<StreamMove> moves;
  const auto enter = [&](int64_t chunk) {
    if (chunk < chunks) moves.push_back({in, chunk, chunk % kStreamBuffers});
  };
  for (int64_t chunk = 0; chunk < kStreamBuffers; ++chunk) enter(chunk);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    moves.push_back({update, chunk, chunk % kStreamBuffers});
    moves.push_back({out, chunk, chunk % kStreamBuffers});
    enter(chunk + kStreamBuffers);
  }
  return moves;
}

std::string text_of(const StreamMove& move) {
  switch (move.kind) {
    case StreamMove::Kind::in: return fmt::format("in {} > {}", move.chunk, move.buffer);
    case StreamMove::Kind::update: return fmt::format("update {}", move.chunk);
    default: return fmt::format("out {}", move.chunk);
  }
}

}  // namespace concord
