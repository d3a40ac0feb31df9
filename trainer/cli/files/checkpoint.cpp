#include "trainer/cli/files/checkpoint.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/bytes_text.h"
#include "core/base/config_error.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"
#include "core/checkpoint/verify.h"
#include "core/models/adapters/adapter_config.h"
#include "core/safetensors/index.h"
#include "trainer/checkpoint/output_folder.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/cli/files/checkpoint_diff.h"    // concord checkpoint diff
#include "trainer/cli/files/checkpoint_verify.h"  // concord checkpoint verify

namespace concord {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct CheckpointOptions {
  std::string folder;
  bool json = false;
};

std::vector<std::pair<std::string, uint64_t>> files_in(const fs::path& folder) {
  std::vector<std::pair<std::string, uint64_t>> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file()) files.emplace_back(entry.path().filename().string(), entry.file_size());
  }
  std::sort(files.begin(), files.end());
  return files;
}

uint64_t bytes_in(const fs::path& folder) {
  uint64_t bytes = 0;
  for (const auto& [name, size] : files_in(folder)) bytes += size;
  return bytes;
}

std::string time_text(const fs::path& path) {
  struct stat found{};
  struct tm utc{};
  char text[32] = "";
  if (::stat(path.c_str(), &found) == 0 && ::gmtime_r(&found.st_mtime, &utc) != nullptr) {
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  }
  return text;
}

// Folders of saves that have not been finished: checkpoint-<step>.tmp-<16 digits>.
std::vector<fs::path> unfinished_in(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const size_t end = name.find(".tmp-");
    if (end != std::string::npos && checkpoint_step(name.substr(0, end)) && entry.is_directory()) {
      found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

ordered_json list_entry(const fs::path& path, bool complete) {
  const std::string name = path.filename().string();
  return {{"step", *checkpoint_step(name.substr(0, name.find(".tmp-")))},
          {"folder", path.string()},
          {"time", time_text(path)},
          {"complete", complete},
          {"resumable", complete && can_resume_from(path.string())},
          {"bytes", bytes_in(path)}};
}

void check_is_folder(const std::string& folder) {
  std::error_code ignored;
  if (fs::is_directory(folder, ignored)) return;
  throw ConfigError(fmt::format("{}: is not a folder; give the output folder of a run, or a checkpoint in it", folder));
}

int list_checkpoints(const CheckpointOptions& options) {
  check_is_folder(options.folder);
  ordered_json list = ordered_json::array();
  for (const fs::path& path : checkpoints_in(options.folder)) list.push_back(list_entry(path, true));
  for (const fs::path& path : unfinished_in(options.folder)) list.push_back(list_entry(path, false));
  if (options.json) {
    fmt::print("{}\n", ordered_json{{"checkpoints", std::move(list)}}.dump(1));
    return 0;
  }
  if (list.empty()) fmt::print("no checkpoints in {}\n", options.folder);
  for (const ordered_json& entry : list) {
    const char* kind = !entry["complete"].get<bool>()   ? "incomplete"
                       : entry["resumable"].get<bool>() ? "complete"
                                                        : "weights only";
    fmt::print("{:>10}  {}  {:>12}  {:>10}  {}\n", entry["step"].get<int64_t>(), entry["time"].get<std::string>(), kind,
               bytes_text(entry["bytes"].get<uint64_t>()), one_line(entry["folder"].get<std::string>()));
  }
  return 0;
}

int64_t parameters_in(const std::string& folder) {
  int64_t elements = 0;
  const safetensors::Weights weights(folder, weights_stem(folder));
  for (const auto& [name, tensor] : weights.tensors()) {
    elements += tensor.info->elements();
  }
  return elements;
}

// Returns the damage that file sizes show, without reading the files; empty without a manifest.
std::vector<std::string> damage_by_size(const std::string& folder) {
  std::vector<std::string> texts;
  if (!has_manifest(folder)) return texts;
  try {
    for (const Damage& damage : compare_sizes(folder, read_manifest(folder))) texts.push_back(to_string(damage));
  } catch (const ConfigError& error) {
    texts.push_back(error.what());
  }
  return texts;
}

// Returns null if damaged files cannot be read.
ordered_json parameters_json(const std::string& folder, bool is_complete) {
  try {
    return parameters_in(folder);
  } catch (const ConfigError&) {
    if (is_complete) throw;
    return nullptr;
  }
}

ordered_json description(const std::string& folder) {
  const bool resumable = can_resume_from(folder);
  const std::optional<int64_t> step = checkpoint_step(fs::path(folder).lexically_normal());
  if (!resumable && !step) {
    throw ConfigError(fmt::format("{} is not a checkpoint: {} is missing and the name is not checkpoint-<step>", folder,
                                  kMetadataFile));
  }
  const std::vector<std::string> damage = damage_by_size(folder);
  ordered_json json = {{"step", step ? ordered_json(*step) : ordered_json()},
                       {"complete", damage.empty()},
                       {"damage", damage},
                       {"checksums", has_manifest(folder)},
                       {"resumable", resumable},
                       {"layout", nullptr},
                       {"parameters", parameters_json(folder, damage.empty())},
                       {"bytes", bytes_in(folder)}};
  ordered_json files = ordered_json::array(), arguments = ordered_json::object();
  for (const auto& [name, bytes] : files_in(folder)) files.push_back({{"name", name}, {"bytes", bytes}});
  if (resumable) {
    // Checked, and only what is known.
    auto state = parse_json<ordered_json>(to_json(read_training_state(folder)), folder);
    for (const char* name : {"step", "layout", "tokens", "epoch"}) json[name] = std::move(state[name]);
    arguments = std::move(state["arguments"]);
  }
  json["files"] = std::move(files);
  json["arguments"] = std::move(arguments);
  return json;
}

int describe_checkpoint(CheckpointOptions options) {
  check_is_folder(options.folder);
  while (options.folder.size() > 1 && options.folder.ends_with('/')) options.folder.pop_back();
  const ordered_json json = description(options.folder);
  if (options.json) {
    fmt::print("{}\n", json.dump(1));
    return 0;
  }
  fmt::print("step        {}{}\n", json["step"].dump(), json["resumable"].get<bool>() ? "" : ", weights only");
  fmt::print("parameters  {}\n", json["parameters"].is_null() ? "unknown" : json["parameters"].dump());
  fmt::print("bytes       {} ({})\n", json["bytes"].get<uint64_t>(), bytes_text(json["bytes"].get<uint64_t>()));
  if (json["resumable"].get<bool>()) {
    fmt::print("tokens      {}\n", json["tokens"].get<int64_t>());
    std::string layout;
    for (const auto& [name, value] : json["layout"].items()) layout += fmt::format(" {} {},", name, value.dump());
    layout.pop_back();
    fmt::print("layout     {}\n", layout);
  }
  for (const ordered_json& damage : json["damage"]) fmt::print("damaged     {}\n", damage.get<std::string>());
  if (json["complete"].get<bool>() && json["checksums"].get<bool>()) {
    fmt::print("checksums   there; `concord checkpoint verify` compares them\n");
  }
  fmt::print("files\n");
  for (const ordered_json& file : json["files"]) {
    fmt::print("  {:>10}  {}\n", bytes_text(file["bytes"].get<uint64_t>()), one_line(file["name"].get<std::string>()));
  }
  return 0;
}

}  // namespace

void add_checkpoint_command(CLI::App* program, int* exit_code) {
  CLI::App* app = program->add_subcommand("checkpoint", "list, describe, verify and compare checkpoints");
  app->require_subcommand(1);
  const auto options = std::make_shared<CheckpointOptions>();
  CLI::App* list = app->add_subcommand("list", "the checkpoints of an output folder: step, time, completeness, size");
  list->add_option("output_dir", options->folder, "output folder of a run")->required();
  list->add_flag("--json", options->json, "print JSON");
  list->callback([options, exit_code] { *exit_code = list_checkpoints(*options); });
  CLI::App* describe = app->add_subcommand("describe", "step, layout, parameters, sizes and arguments of a checkpoint");
  describe->add_option("checkpoint", options->folder, "folder of a checkpoint")->required();
  describe->add_flag("--json", options->json, "print JSON");
  describe->callback([options, exit_code] { *exit_code = describe_checkpoint(*options); });
  add_checkpoint_verify_command(app, exit_code);
  add_checkpoint_diff_command(app, exit_code);
}

}  // namespace concord
