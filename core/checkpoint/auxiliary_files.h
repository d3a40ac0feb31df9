// The auxiliary files of a Hugging Face folder, which are copied along with its weights: tokenizer, processor and
// generation config. Threads: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace concord {

inline constexpr const char* kGenerationConfigFile = "generation_config.json";

bool is_auxiliary_file(std::string_view name);
// Returns the names of the auxiliary files in |folder|, without subfolders. Throws ConfigError for one that cannot be
// copied: a pipe, a device, a dangling link.
std::vector<std::string> auxiliary_files_in(const std::string& folder);

// Copies |from| to |to|, which must not exist, in pieces of 1 MiB, and waits until it is durable. Throws ConfigError if
// |from| is not a regular file, std::runtime_error for file system errors.
void copy_file_durably(const std::string& from, const std::string& to);
// Like copy_file_durably(), for a text.
void write_file_durably(const std::string& path, std::string_view text);

}  // namespace concord
