// The files by which transformers knows a tokenizer. They go with the data that was made with it, in a folder next to
// it, and from there into every model that is trained on it: tokens are useless without the tokenizer that made them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/files/output_check.h"

namespace concord {

using TokenizerFiles = std::vector<std::pair<std::string, std::string>>;  // name, text

// Of a tokenizer as make_tokenizer takes it. For "byte" they are generated: HF's byte-level BPE without merges has the
// same ids. Else the tokenizer.json and what belongs to it in its folder. Throws ConfigError if they cannot be read.
TokenizerFiles tokenizer_files(const std::string& tokenizer);

// The id of the token that ends a document, as make_tokenizer's end_of_document has it; none if |files| have none of
// them. Throws ConfigError for a tokenizer.json that cannot be read.
std::optional<int64_t> end_of_document(const TokenizerFiles& files);

// Where the files of |data|, a path as --train_data takes it, are: "corpus.tokenizer" of corpus.bin and corpus.idx.
std::string tokenizer_folder(const std::string& data);

// Throws ConfigError if that folder holds anything but a tokenizer's files or an input of |rules|, or exists at all
// without |rules|.overwrite.
void check_tokenizer_folder(const std::string& data, const OutputRules& rules);

// Puts |files| into that folder, over those of an earlier build. Throws ConfigError for a folder that holds
// other files, and as OutputFile does.
void write_tokenizer_files(const std::string& data, const TokenizerFiles& files);

// Of the tokenizer that made the tokens of |data|: those in that folder, and those of |tokenizer| if training tokenizes
// the text itself. Empty if unknown. Throws ConfigError if they exist but cannot be read.
TokenizerFiles read_tokenizer_files(const std::string& data, const std::string& tokenizer);

}  // namespace concord
