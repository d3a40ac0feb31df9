#include "trainer/data/records.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/config_error.h"
#include "core/input_file.h"
#include "core/parse_json.h"
#include "trainer/data/python_process.h"

namespace concord {
namespace {

constexpr const char* kRecordsScript =
#include "records_script.inc"
    ;
constexpr size_t kLongestReason = 2000;

std::string all_output(int fd, const std::string& path) {
  std::string text;
  std::array<char, 1 << 16> piece;
  while (true) {
    const ssize_t got = ::read(fd, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw ConfigError(fmt::format("{}: cannot be read by Python: {}", path, std::strerror(errno)));
    if (got == 0) return text;
    text.append(piece.data(), static_cast<size_t>(got));
  }
}

}  // namespace

bool is_record_file(const std::string& path) {
  return path.ends_with(".parquet") || path.ends_with(".arrow") || path.ends_with(".json") ||
         path.ends_with(".jsonl.gz");
}

std::string read_records(const std::string& path) {
  InputFile(path, "give a file of records");
  PythonProcess python(kRecordsScript, {path}, "reading " + path);
  python.take_input();  // it reads none
  const UniqueFd output = python.take_output();
  std::string text = all_output(output.get(), path);
  const size_t last = text.size() < 2 ? std::string::npos : text.rfind('\n', text.size() - 2);
  const size_t begin = last == std::string::npos ? 0 : last + 1;
  const nlohmann::json end = text.empty() ? nlohmann::json() : parse_json(text.substr(begin), path);
  if (end.is_object() && end.contains("error") && end["error"].is_string()) {
    throw ConfigError(path + ": " + one_line(end["error"].get<std::string>(), kLongestReason));
  }
  const auto lines = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin), '\n');
  if (!end.is_object() || !end.contains("end") || end["end"] != lines) {
    throw ConfigError(path + ": Python ended before it had read all records; see its output above");
  }
  text.resize(begin);
  return text;
}

}  // namespace concord
