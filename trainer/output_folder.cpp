#include "trainer/output_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/config_error.h"

namespace concord {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCheckpoint = "checkpoint-";
constexpr std::string_view kFilesOfARun[] = {
    "metrics.jsonl", "eval_metrics.jsonl", "trainer_state.json", "runs", "report.html", "model", "training_args.yaml"};

std::optional<int64_t> checkpoint_step(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kCheckpoint)) return std::nullopt;
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data() + kCheckpoint.size(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return step;
}

std::vector<fs::path> left_by_a_run(const fs::path& folder) {
  std::vector<fs::path> found = checkpoints_in(folder);
  for (const std::string_view name : kFilesOfARun) {
    std::error_code error;
    if (fs::exists(folder / name, error)) found.push_back(folder / name);
  }
  return found;
}

// The folder itself, or the nearest one above it that is there.
fs::path nearest_existing(fs::path path) {
  std::error_code error;
  path = fs::absolute(path, error).lexically_normal();
  while (!fs::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  return path;
}

}  // namespace

fs::path checkpoint_folder(const fs::path& folder, int64_t step) {
  return folder / fmt::format("{}{}", kCheckpoint, step);
}

std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (checkpoint_step(entry.path())) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end(),
            [](const fs::path& a, const fs::path& b) { return *checkpoint_step(a) < *checkpoint_step(b); });
  return found;
}

void keep_newest(const fs::path& folder, int64_t limit) {
  if (limit <= 0) return;
  const std::vector<fs::path> found = checkpoints_in(folder);
  for (size_t i = 0; i + static_cast<size_t>(limit) < found.size(); ++i) fs::remove_all(found[i]);
}

void check_output_folder(const fs::path& folder, bool overwrite) {
  const fs::path existing = nearest_existing(folder);
  if (!fs::is_directory(existing)) {
    throw ConfigError(fmt::format("output_dir '{}': '{}' is a file, not a folder; choose another", folder.string(),
                                  existing.string()));
  }
  if (::access(existing.c_str(), W_OK | X_OK) != 0) {
    throw ConfigError(fmt::format("output_dir '{}': nothing can be written in '{}' ({}); choose another folder",
                                  folder.string(), existing.string(), std::generic_category().message(errno)));
  }
  if (overwrite) return;
  const std::vector<fs::path> left = left_by_a_run(folder);
  if (left.empty()) return;
  throw ConfigError(fmt::format(
      "output_dir '{}' holds another run ({}); choose another folder, or give --overwrite_output_dir to lose that run",
      folder.string(), left.front().filename().string()));
}

void prepare_output_folder(const fs::path& folder, bool overwrite) {
  check_output_folder(folder, overwrite);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw ConfigError(fmt::format("output_dir '{}' cannot be made: {}", folder.string(), error.message()));
  for (const fs::path& left : left_by_a_run(folder)) {
    fs::remove_all(left, error);
    if (error) throw ConfigError(fmt::format("'{}' cannot be removed: {}", left.string(), error.message()));
  }
}

}  // namespace concord
