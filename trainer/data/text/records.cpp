#include "trainer/data/text/records.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"
#include "trainer/data/text/python_process.h"

namespace concord {
namespace {

constexpr const char* kRecordsScript =
#include "records_script.inc"
    ;
constexpr size_t kMaxReason = 2000;

// Checks Python's last line, the status: everything was read, or the error.
void check_end(const std::string& path, const std::string& line, int64_t lines) {
  const nlohmann::json end = line.empty() ? nlohmann::json() : parse_json(line, path);
  if (end.is_object() && end.contains("error") && end["error"].is_string()) {
    throw ConfigError(path + ": " + one_line(end["error"].get<std::string>(), kMaxReason));
  }
  if (!end.is_object() || !end.contains("end") || end["end"] != lines) {
    throw ConfigError(path + ": Python exited before it had read all records; see its output above");
  }
}

}  // namespace

bool is_record_file(const std::string& path) {
  constexpr const char* kEndings[] = {".parquet", ".arrow", ".json", ".jsonl.gz", ".jsonl.zst", ".jsonl.xz", ".tar"};
  return std::ranges::any_of(kEndings, [&](const char* ending) { return path.ends_with(ending); });
}

void stream_records(const std::string& path, const std::function<void(std::string_view lines)>& each) {
  InputFile(path, "give a file of records");
  PythonProcess python(kRecordsScript, {path}, "reading " + path);
  python.take_input();  // it reads no input
  const UniqueFd output = python.take_output();
  std::vector<char> piece(1 << 20);
  std::string waiting;  // starts at the start of a line; its last complete line may be the status
  int64_t lines = 0;
  while (true) {
    const ssize_t got = ::read(output.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw ConfigError(fmt::format("{}: cannot be read by Python: {}", path, std::strerror(errno)));
    if (got == 0) break;
    waiting.append(piece.data(), static_cast<size_t>(got));
    const size_t last = waiting.rfind('\n');
    const size_t before = last == std::string::npos || last == 0 ? std::string::npos : waiting.rfind('\n', last - 1);
    if (before == std::string::npos) continue;
    const std::string_view whole = std::string_view(waiting).substr(0, before + 1);
    lines += std::ranges::count(whole, '\n');
    each(whole);
    waiting.erase(0, before + 1);
  }
  check_end(path, waiting, lines);
}

std::string read_records(const std::string& path) {
  std::string text;
  stream_records(path, [&](std::string_view lines) { text += lines; });
  return text;
}

}  // namespace concord
