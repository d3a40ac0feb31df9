// Expands a file, folder or pattern that the user gives as data to a list of files.
#pragma once

#include <string>
#include <vector>

namespace concord {

// Returns |path| itself if it is a file or does not exist (the reader reports the error). A pattern (data/*.parquet,
// with * ? [..]) is all matching files. A folder is all files in it and below with an ending of text or records (.txt,
// .jsonl, trainer/data/text/records.h), except hidden ones and metadata of Hugging Face's datasets and LLaMA-Factory
// (dataset_info.json, state.json, cache-*). Sorted by name, so that the order is the same everywhere. Throws
// ConfigError if there is none.
std::vector<std::string> data_files(const std::string& path);

// Returns whether |path| represents more than one file. False for a folder next to a Megatron pair of that name.
bool is_several_files(const std::string& path);

}  // namespace concord
