// Files of records that are no lines of JSON: .parquet, .arrow, .json (a list), and .jsonl compressed as .gz, .zst or
// .xz. Python reads them (trainer/data/text/records_process.py; pyarrow for the first two and zstd) and makes them
// lines of JSON. Threads: any.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace concord {

inline constexpr const char* kRecordEndings = ".parquet, .arrow, .json, .jsonl.gz, .jsonl.zst or .jsonl.xz";

// Whether the name of |path| ends as one of these does.
bool is_record_file(const std::string& path);

// Calls |each| with all records of |path|, one per line, some lines at a time. Throws ConfigError, which begins with
// |path|, for a file that cannot be read, and for a Python or a module that is missing, with what to do; |each| may
// have been called before. Waits: for Python.
void stream_records(const std::string& path, const std::function<void(std::string_view lines)>& each);

// All of them, in memory.
std::string read_records(const std::string& path);

}  // namespace concord
