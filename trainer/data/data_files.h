// What a user names as data, as a list of files: a file, a folder, or a pattern.
#pragma once

#include <string>
#include <vector>

namespace concord {

// |path| itself if it is a file, or nothing that is there (the reader says what is wrong). A pattern (data/*.parquet,
// with * ? [..]) is all files that match it; a folder is all files in it and below whose names end as text or records
// do (.txt, .jsonl, trainer/data/text/records.h), without hidden ones and those that Hugging Face's datasets and
// LLaMA-Factory keep beside the data (dataset_info.json, state.json, cache-*). In the order of their names, so that it
// is the same everywhere. Throws ConfigError if there is none.
std::vector<std::string> data_files(const std::string& path);

// Whether |path| stands for more than one file. A folder beside which there is a Megatron pair of that name does not.
bool is_several_files(const std::string& path);

}  // namespace concord
