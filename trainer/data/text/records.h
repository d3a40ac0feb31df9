// Reads files of records that are not JSON lines: .parquet, .arrow, .json (a list), .tar (WebDataset), and .jsonl as
// .gz, .zst or .xz. Python (trainer/data/text/records_process.py; pyarrow for the first two and zstd) converts them to
// JSON lines. Threads: any.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace concord {

inline constexpr const char* kRecordEndings = ".parquet, .arrow, .json, .tar, .jsonl.gz, .jsonl.zst or .jsonl.xz";

// Returns whether |path| has one of these endings.
bool is_record_file(const std::string& path);

// Calls |each| with all records of |path|, one per line, some lines at a time. Throws ConfigError, starting with
// |path|, for a file that cannot be read, and for a missing Python or module, with what to do; |each| may have been
// called before. Waits: for Python.
void stream_records(const std::string& path, const std::function<void(std::string_view lines)>& each);

// Returns all records, in memory.
std::string read_records(const std::string& path);

}  // namespace concord
