#include "trainer/cli/files/checkpoint_verify.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/bytes_text.h"
#include "core/base/config_error.h"
#include "core/base/files/paths.h"
#include "core/base/quoted.h"
#include "core/checkpoint/verify.h"
#include "trainer/checkpoint/output_folder.h"
#include "trainer/data/build/progress_printer.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int kDamaged = 1;
constexpr int kNotVerified = 2;

struct VerifyOptions {
  std::string folder;
  bool json = false;
};

struct Verified {
  std::string folder;
  bool has_checksums = false;
  std::vector<Damage> damage = {};
  std::vector<std::string> extra_files = {};
  int64_t files = 0, tensors = 0, bytes = 0;
  double seconds = 0;

  int exit_code() const { return !damage.empty() ? kDamaged : has_checksums ? 0 : kNotVerified; }
};

Verified verify(const std::string& folder) {
  Verified result{.folder = folder, .has_checksums = has_manifest(folder)};
  if (!result.has_checksums) return result;
  Manifest manifest;
  try {
    manifest = read_manifest(folder);
  } catch (const ConfigError&) {
    result.damage = verify_checkpoint(folder);  // says what is wrong with it
    return result;
  }
  for (const auto& [name, file] : manifest.files) {
    result.files += 1;
    result.tensors += static_cast<int64_t>(file.tensors.size());
    result.bytes += static_cast<int64_t>(file.bytes);
  }
  ProgressPrinter printer(fs::path(folder).filename().string());
  result.damage =
      verify_files(folder, manifest, {}, [&](uint64_t done, uint64_t all) { printer.show_bytes(done, all); });
  result.seconds = printer.seconds();
  result.extra_files = files_without_checksum(folder, manifest);
  return result;
}

void print_text(const Verified& verified) {
  const std::string folder = printable(verified.folder);
  if (!verified.has_checksums) {
    fmt::print("{}: has no {}, so there are no checksums to verify it by\n", folder, kManifestFile);
    return;
  }
  if (verified.damage.empty()) {
    const auto speed = static_cast<int64_t>(static_cast<double>(verified.bytes) / std::max(verified.seconds, 1e-9));
    fmt::print("{}: intact: {} files, {} tensors, {} in {:.1f} s ({}/s)\n", folder, verified.files, verified.tensors,
               bytes_text(verified.bytes), verified.seconds, bytes_text(speed));
  } else {
    fmt::print("{}: damaged\n", folder);
  }
  for (const Damage& damage : verified.damage) fmt::print("  {}\n", to_string(damage));
  for (const std::string& name : verified.extra_files) fmt::print("  note: {} has no checksum\n", one_line(name));
}

ordered_json to_json(const Verified& verified) {
  ordered_json damage = ordered_json::array();
  for (const Damage& each : verified.damage) {
    damage.push_back({{"kind", to_string(each.kind)},
                      {"file", each.file},
                      {"tensor", each.tensor.empty() ? ordered_json() : ordered_json(each.tensor)},
                      {"expected", each.expected.empty() ? ordered_json() : ordered_json(each.expected)},
                      {"found", each.found.empty() ? ordered_json() : ordered_json(each.found)},
                      {"text", to_string(each)}});
  }
  return {{"folder", verified.folder},           {"has_checksums", verified.has_checksums},
          {"intact", verified.exit_code() == 0}, {"files", verified.files},
          {"tensors", verified.tensors},         {"bytes", verified.bytes},
          {"seconds", verified.seconds},         {"damage", std::move(damage)},
          {"extra_files", verified.extra_files}};
}

// Returns |folder| if it has checksums or the name of a checkpoint, else the checkpoints in it.
std::vector<std::string> folders_to_verify(const std::string& given) {
  const std::string folder = without_trailing_slashes(given);
  std::error_code ignored;
  if (has_manifest(folder) || (checkpoint_step(folder) && fs::is_directory(folder, ignored))) return {folder};
  std::vector<std::string> folders;
  if (fs::is_directory(folder, ignored)) {
    for (const fs::path& path : checkpoints_in(folder)) folders.push_back(path.string());
  }
  if (!folders.empty()) return folders;
  throw ConfigError(fmt::format(
      "{} is not a checkpoint with checksums ({}) and contains none; give a checkpoint, or the output folder of a run",
      folder, kManifestFile));
}

// Damage goes before checksums that are missing.
int worse(int a, int b) { return a == kDamaged || b == kDamaged ? kDamaged : std::max(a, b); }

int run_verify(const VerifyOptions& options) {
  int code = 0;
  ordered_json list = ordered_json::array();
  for (const std::string& folder : folders_to_verify(options.folder)) {
    const Verified verified = verify(folder);
    code = worse(code, verified.exit_code());
    options.json ? list.push_back(to_json(verified)) : print_text(verified);
  }
  if (options.json) {
    fmt::print("{}\n", ordered_json{{"intact", code == 0}, {"checkpoints", std::move(list)}}.dump(
                           1, ' ', false, ordered_json::error_handler_t::replace));
  }
  return code;
}

}  // namespace

void add_checkpoint_verify_command(CLI::App* checkpoint, int* exit_code) {
  CLI::App* verify = checkpoint->add_subcommand("verify", "compare every byte of a checkpoint with its checksums");
  const auto options = std::make_shared<VerifyOptions>();
  verify->add_option("checkpoint", options->folder, "folder of a checkpoint, or output folder of a run: each in it")
      ->required();
  verify->add_flag("--json", options->json, "print one JSON document");
  verify->footer("Exit codes: 0 intact, 1 damaged, 2 no checkpoint or no checksums.");
  verify->callback([options, exit_code] { *exit_code = run_verify(*options); });
}

}  // namespace concord
