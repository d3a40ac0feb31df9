// Files of records that are no lines of JSON: .parquet, .arrow, .json (a list) and .jsonl.gz, read by Python (pyarrow
// for the first two; trainer/data/records_process.py) and made into lines of JSON. Threads: any.
#pragma once

#include <string>

namespace concord {

// Whether the name of |path| ends as one of these does.
bool is_record_file(const std::string& path);

// All records of |path|, one per line, in memory. Throws ConfigError, which begins with |path|, for a file that cannot
// be read, and for a Python or a module that is missing, with what to do. Waits: for Python.
std::string read_records(const std::string& path);

}  // namespace concord
