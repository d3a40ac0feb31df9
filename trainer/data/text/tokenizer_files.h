// The tokenizer files of transformers. They are stored in a folder next to the data and copied into every model trained
// on it, since tokens are useless without their tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/files/output_check.h"

namespace concord {

using TokenizerFiles = std::vector<std::pair<std::string, std::string>>;  // name, text

// Returns the files of a tokenizer as for make_tokenizer. For "byte" they are generated: HF's byte-level BPE without
// merges has the same ids. Otherwise the tokenizer.json and related files in its folder. Throws ConfigError if they
// cannot be read.
TokenizerFiles tokenizer_files(const std::string& tokenizer);

// Returns the end-of-document token, as in make_tokenizer's end_of_document; nullopt if |files| have none. Throws
// ConfigError for a tokenizer.json that cannot be read.
std::optional<int64_t> end_of_document(const TokenizerFiles& files);

// Returns the folder of the files for |data|, a path as for --train_data: "corpus.tokenizer" for corpus.bin and
// corpus.idx.
std::string tokenizer_folder(const std::string& data);

// Throws ConfigError if that folder contains anything but tokenizer files or an input of |rules|, or exists at all
// without |rules|.overwrite.
void check_tokenizer_folder(const std::string& data, const OutputRules& rules);

// Writes |files| to that folder, replacing those of an earlier build. Throws ConfigError if it contains other files,
// and like OutputFile.
void write_tokenizer_files(const std::string& data, const TokenizerFiles& files);

// Returns the files of the tokenizer of |data|: those in that folder, or those of |tokenizer| if training tokenizes the
// text itself. Empty if unknown. Throws ConfigError if they exist but cannot be read.
TokenizerFiles read_tokenizer_files(const std::string& data, const std::string& tokenizer);

}  // namespace concord
