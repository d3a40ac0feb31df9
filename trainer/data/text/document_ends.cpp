#include "trainer/data/text/document_ends.h"

#include <algorithm>
#include <numeric>

#include "trainer/data/packing.h"

namespace concord {
namespace {

// A document, or the part of one in a row.
struct Piece {
  Sample sample;
  int64_t begin = 0;  // in its row
};

void cut_row(const Sample& row, int64_t eod, std::vector<Piece>* pieces) {
  for (auto begin = row.ids.begin(); begin != row.ids.end();) {
    auto end = std::find(begin, row.ids.end(), eod);
    if (end != row.ids.end()) ++end;
    const auto at = begin - row.ids.begin(), to = end - row.ids.begin();
    pieces->push_back({{{begin, end}, {row.labels.begin() + at, row.labels.begin() + to}}, at});
    begin = end;
  }
}

}  // namespace

void mask_document_ends(int64_t eod, Sample* row) {
  for (size_t t = 0; t < row->ids.size(); ++t) {
    if (row->ids[t] == eod) row->labels[t] = kIgnoredToken;
  }
}

std::vector<int64_t> positions_in_documents(const std::vector<int64_t>& row, int64_t eod) {
  std::vector<int64_t> positions(row.size());
  for (size_t t = 1; t < row.size(); ++t) positions[t] = row[t - 1] == eod ? 0 : positions[t - 1] + 1;
  return positions;
}

TokenBatch pack_documents(const std::vector<Sample>& rows, const DataArguments& arguments) {
  std::vector<Piece> pieces;
  for (const Sample& row : rows) cut_row(row, arguments.eod_token_id, &pieces);
  std::vector<Sample> samples;
  for (const Piece& piece : pieces) samples.push_back(piece.sample);
  TokenBatch batch = pack_samples(samples, arguments.pad_multiple, arguments.pad_id);
  if (arguments.reset_position_ids) return batch;
  for (size_t i = 0; i < pieces.size(); ++i) {
    std::iota(batch.position_ids.begin() + batch.cu_seqlens[i], batch.position_ids.begin() + batch.cu_seqlens[i + 1],
              pieces[i].begin);
  }
  return batch;
}

}  // namespace concord
