// What happens at the token that ends a document in rows that are cut from many of them: Megatron's reset_position_ids,
// reset_attention_mask and eod_mask_loss. The token itself still belongs to its document. Pure.
#pragma once

#include <vector>

#include "trainer/data/arguments.h"
#include "trainer/data/sample_source.h"
#include "trainer/data/token_batch.h"

namespace concord {

// Nothing is learnt from what follows the end of a document: the first token of the next one.
void mask_document_ends(int64_t eod, Sample* row);

// The position of every token of |row|, from 0 in each document.
std::vector<int64_t> positions_in_documents(const std::vector<int64_t>& row, int64_t eod);

// Rows in which no document sees another one, as packed sequences (trainer/data/packing.h), each a document or the part
// of one that a row has. With |reset_position_ids| positions begin at 0 in each, else in each row.
TokenBatch pack_documents(const std::vector<Sample>& rows, const DataArguments& arguments);

}  // namespace concord
