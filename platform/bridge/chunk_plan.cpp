#include "platform/bridge/chunk_plan.h"

#include <algorithm>

#include "platform/loader/text.h"

namespace concord::bridge {
namespace {

// Elements |first| .. of each part, without gaps in the staging buffer. Whole parts are one piece.
std::vector<Piece> pieces_of(int64_t parts, int64_t part_count, int64_t first, int64_t count, int64_t element) {
  if (count == part_count && parts > 1) return pieces_of(1, parts * count, 0, parts * count, element);
  std::vector<Piece> pieces;
  for (int64_t part = 0; part < parts && count > 0; ++part)
    pieces.push_back({(part * part_count + first) * element, part * count * element, count * element});
  return pieces;
}

}  // namespace

std::vector<Chunk> plan_chunks(int64_t count, int64_t element, const Sides& sides, int64_t limit) {
  const int64_t most = std::max<int64_t>(1, limit / element / std::max(sides.send_parts, sides.recv_parts));
  std::vector<Chunk> chunks;
  for (int64_t first = 0; first < count || chunks.empty(); first += most) {
    const int64_t now = std::min(most, count - first);
    chunks.push_back({now, pieces_of(sides.sends ? sides.send_parts : 0, count, first, now, element),
                      pieces_of(sides.receives ? sides.recv_parts : 0, count, first, now, element)});
  }
  return chunks;
}

int64_t staged_bytes(const std::vector<Piece>& pieces) {
  return pieces.empty() ? 0 : pieces.back().staged + pieces.back().bytes;
}

std::string to_string(const Chunk& chunk) {
  std::string text = loader::cat(chunk.count, " elements: down");
  for (const Piece& piece : chunk.down) text += loader::cat(" ", piece.offset, ">", piece.staged, "+", piece.bytes);
  text += ", up";
  for (const Piece& piece : chunk.up) text += loader::cat(" ", piece.offset, "<", piece.staged, "+", piece.bytes);
  return text;
}

}  // namespace concord::bridge
