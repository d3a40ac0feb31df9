#include "core/base/files/output_check.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/files/new_file.h"
#include "core/base/files/paths.h"
#include "core/base/files/run_lock.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

namespace fs = std::filesystem;

using FileId = std::pair<dev_t, ino_t>;  // all links to a file share it

std::optional<FileId> file_id(const std::string& path) {
  struct stat state{};
  if (::stat(path.c_str(), &state) != 0) return std::nullopt;
  return FileId(state.st_dev, state.st_ino);
}

// Returns the input, or the file in an input folder, with this |id|; empty if none has it.
std::string input_with(const FileId& id, const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    std::error_code error;
    if (file_id(input) == id) return input;
    if (!fs::is_directory(input, error)) continue;
    for (fs::recursive_directory_iterator entry(input, error), end; !error && entry != end; entry.increment(error)) {
      if (file_id(entry->path().string()) == id) return entry->path().string();
    }
  }
  return "";
}

}  // namespace

void check_outside_live_runs(const std::string& argument, const std::string& path) {
  const std::optional<LockHolder> holder = live_run_around(path);
  if (!holder) return;
  throw ConfigError(
      fmt::format("{} {}: this folder is in use by process {} on {}; wait until it has ended, or write elsewhere",
                  argument, quoted(path), holder->pid, quoted(holder->host)));
}

void check_output_file(const std::string& argument, const std::string& path, const OutputRules& rules) {
  if (path.empty() || path == "-") return;
  check_replaceable(path);
  // Files are written under these suffixes first and then renamed to |path|.
  for (const char* suffix : {"", ".new", ".partial"}) {
    const std::optional<FileId> id = file_id(path + suffix);
    const std::string input = id ? input_with(*id, rules.inputs) : "";
    if (input.empty()) continue;
    throw ConfigError(fmt::format("{} {} would overwrite {}, an input of this command; choose another file", argument,
                                  quoted(path), quoted(input)));
  }
  std::error_code error;
  if (!rules.overwrite && fs::exists(fs::symlink_status(path, error))) {
    throw ConfigError(fmt::format("{} already exists; choose another {}, or pass --overwrite", quoted(path), argument));
  }
  if (!rules.in_live_run) check_outside_live_runs(argument, path);
}

void check_output_files(const std::vector<OutputArgument>& outputs, const OutputRules& rules) {
  std::map<fs::path, std::string> arguments;  // by the file that they name
  for (const auto& [argument, path] : outputs) {
    check_output_file(argument, path, rules);
    std::error_code error;
    const fs::path file = path == "-" ? fs::path("-") : fs::weakly_canonical(fs::absolute(path, error), error);
    const auto [other, is_new] = arguments.emplace(file, argument);
    if (path.empty() || is_new) continue;
    throw ConfigError(fmt::format("{} and {} both name {}; choose two files", other->second, argument, quoted(path)));
  }
}

void check_replaced_folder(const std::string& argument, const std::string& path, const OutputRules& rules) {
  for (const std::string& input : rules.inputs) {
    const std::optional<FileId> id = file_id(input);
    if (!id || (!lies_in(input, path) && input_with(*id, {path}).empty())) continue;
    throw ConfigError(fmt::format("{} would replace {}, an input of this command; choose another {}", quoted(path),
                                  quoted(input), argument));
  }
}

}  // namespace concord
