// Handling of end-of-document tokens in rows cut from many documents: Megatron's reset_position_ids,
// reset_attention_mask and eod_mask_loss. The token itself still belongs to its document. Pure.
#pragma once

#include <vector>

#include "trainer/data/arguments.h"
#include "trainer/data/sources/sample_source.h"
#include "trainer/data/token_batch.h"

namespace concord {

// Masks the labels at document ends: the first token of the next document is not trained on.
void mask_document_ends(int64_t eod, Sample* row);

// Returns the position of every token of |row|, starting at 0 in each document.
std::vector<int64_t> positions_in_documents(const std::vector<int64_t>& row, int64_t eod);

// Packs rows in which no document attends to another one, as packed sequences (trainer/data/packing.h), one per
// document or part of one in a row. With |reset_position_ids| positions start at 0 in each document, otherwise in each
// row.
TokenBatch pack_documents(const std::vector<Sample>& rows, const DataArguments& arguments);

}  // namespace concord
