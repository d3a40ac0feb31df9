#include "core/base/files/hub_cache.h"

#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/base/config_error.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Whether |text| can be the owner or the name of a repository: letters, digits, '-', '_' and '.', not at either end.
bool is_part(const std::string& text) {
  constexpr const char* kAlphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  const auto is_end = [&](char letter) { return std::string(kAlphanumeric).find(letter) != std::string::npos; };
  return !text.empty() && text.size() <= 96 && is_end(text.front()) && is_end(text.back()) &&
         text.find_first_not_of(std::string(kAlphanumeric) + "-_.") == std::string::npos;
}

bool is_name(const std::string& given) {
  const size_t slash = given.find('/');
  return slash != std::string::npos && is_part(given.substr(0, slash)) && is_part(given.substr(slash + 1)) &&
         !given.ends_with(".json");
}

}  // namespace

std::string hub_cache() {
  if (const std::string given = variable("HF_HUB_CACHE"); !given.empty()) return given;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/huggingface/hub";
  return variable("HOME") + "/.cache/huggingface/hub";
}

std::optional<std::string> hub_snapshot(const std::string& name) {
  if (!is_name(name)) return std::nullopt;
  std::string folder = name;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path model = fs::path(hub_cache()) / ("models--" + folder);
  std::string commit;
  std::ifstream(model / "refs/main") >> commit;
  std::error_code ignored;
  const fs::path snapshot = model / "snapshots" / commit;
  if (!is_part(commit) || !fs::is_directory(snapshot, ignored)) return std::nullopt;
  return snapshot.string();
}

std::string local_model(const std::string& given, const char* what) {
  std::error_code ignored;
  if (given.empty() || fs::exists(given, ignored) || !is_name(given)) return given;
  if (const std::optional<std::string> found = hub_snapshot(given)) return *found;
  throw ConfigError(fmt::format(
      "{} {} is neither a folder here nor a model in HF's cache, {}; check the path, or, if that is its name "
      "on the Hugging Face hub, download it first: hf download {}",
      what, quoted(given), hub_cache(), given));
}

}  // namespace concord
