#include "trainer/cli/platforms.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "platform/cpp/device.hpp"
#include "platform/loader/host.h"

namespace concord {
namespace {

using nlohmann::ordered_json;

constexpr const char* kPlatformsFooter =
    R"(Plugins are files named libconcord_NAME.so. They are searched for in the folders of CONCORD_PLUGIN_PATH
(separated by ':'), in ../lib and ../lib/concord relative to this program, and where Concord was installed.
CONCORD_PLATFORM=NAME or =/path/to/plugin.so selects one; otherwise the plugin with the highest priority that has a
device is used.
Exit codes: 0 a usable platform was found, 1 none was found, 2 wrong usage.)";

struct DeviceLine {
  int32_t index;
  concord_device_info info;
  std::string problem;  // why there is no info
};

std::vector<DeviceLine> devices_of(const loader::Candidate& candidate) {
  std::vector<DeviceLine> lines;
  for (int32_t i = 0; i < candidate.devices; ++i) {
    DeviceLine line{i, {}, ""};
    try {
      line.info = Device(Platform(*candidate.plugin), i).info();
    } catch (const Error& error) {
      line.problem = error.what();
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

bool is_chosen(const PlatformsReport& report, const loader::Candidate& candidate) {
  return report.choice && candidate.plugin == report.choice->plugin;
}

const char* state_of(const PlatformsReport& report, const loader::Candidate& candidate) {
  if (is_chosen(report, candidate)) return "chosen";
  if (candidate.plugin == nullptr) return "refused";
  return candidate.reason.empty() ? "usable" : "not chosen by itself";
}

// ------------------------------------------------------------------------------------------------------------ text

std::string device_text(const DeviceLine& line) {
  if (!line.problem.empty()) return fmt::format("  device {}: {}\n", line.index, line.problem);
  const concord_device_info& info = line.info;
  std::vector<std::string> parts{info.name};
  if (info.architecture[0] != '\0') parts.emplace_back(info.architecture);
  if (info.multiprocessors > 0) parts.push_back(fmt::format("{} multiprocessors", info.multiprocessors));
  if (info.total_memory > 0)
    parts.push_back(fmt::format("{:.1f} GiB", static_cast<double>(info.total_memory) / (1 << 30)));
  if (info.pci_bus_id[0] != '\0') parts.push_back(fmt::format("PCI {}", info.pci_bus_id));
  if (info.peak_flops_bf16 > 0) parts.push_back(fmt::format("{:.0f} TFLOP/s in bf16", info.peak_flops_bf16 / 1e12));
  return fmt::format("  device {}: {}\n", line.index, fmt::join(parts, ", "));
}

std::string capabilities_text(const Platform& platform) {
  std::string can;
  std::string cannot;
  for (const concord_capability& capability : platform.capabilities()) {
    if (capability.value != 0) {
      can += fmt::format("{}{}{}", can.empty() ? "" : ", ", capability.name,
                         capability.value == 1 ? "" : fmt::format(" {}", capability.value));
    } else {
      cannot += fmt::format("  cannot: {}{}{}\n", capability.name, capability.note != nullptr ? ": " : "",
                            capability.note != nullptr ? capability.note : "");
    }
  }
  return (can.empty() ? "" : fmt::format("  can: {}\n", can)) + cannot;
}

std::string candidate_text(const PlatformsReport& report, const loader::Candidate& candidate) {
  std::string text = fmt::format("{} {} [{}]\n", is_chosen(report, candidate) ? "*" : "-", candidate.name,
                                 state_of(report, candidate));
  text += fmt::format("  file: {} ({})\n", candidate.path, candidate.origin);
  if (!candidate.reason.empty()) text += fmt::format("  reason: {}\n", candidate.reason);
  if (candidate.plugin == nullptr) return text;
  const Platform platform(*candidate.plugin);
  text += fmt::format("  version: {}; vendor {}; ABI {}; priority {}; results are called {}\n", platform.version(),
                      platform.vendor(), to_string(platform.abi_version()), platform.core().priority, platform.label());
  for (const DeviceLine& line : devices_of(candidate)) text += device_text(line);
  return text + capabilities_text(platform);
}

// ------------------------------------------------------------------------------------------------------------ JSON

ordered_json device_json(const DeviceLine& line) {
  if (!line.problem.empty()) return {{"index", line.index}, {"problem", line.problem}};
  const concord_device_info& info = line.info;
  return {{"index", line.index},
          {"name", info.name},
          {"architecture", info.architecture},
          {"multiprocessors", info.multiprocessors},
          {"total_memory", info.total_memory},
          {"pci_bus_id", info.pci_bus_id},
          {"peak_flops", {{"f32", info.peak_flops_f32}, {"bf16", info.peak_flops_bf16}, {"f16", info.peak_flops_f16}}}};
}

ordered_json candidate_json(const PlatformsReport& report, const loader::Candidate& candidate) {
  ordered_json object{{"name", candidate.name},
                      {"state", state_of(report, candidate)},
                      {"path", candidate.path},
                      {"origin", candidate.origin},
                      {"reason", candidate.reason}};
  if (candidate.plugin == nullptr) return object;
  const Platform platform(*candidate.plugin);
  object["version"] = platform.version();
  object["vendor"] = platform.vendor();
  object["label"] = platform.label();
  object["abi"] = to_string(platform.abi_version());
  object["priority"] = platform.core().priority;
  object["devices"] = ordered_json::array();
  for (const DeviceLine& line : devices_of(candidate)) object["devices"].push_back(device_json(line));
  object["capabilities"] = ordered_json::array();
  for (const concord_capability& capability : platform.capabilities()) {
    object["capabilities"].push_back({{"name", capability.name},
                                      {"value", capability.value},
                                      {"note", capability.note != nullptr ? capability.note : ""}});
  }
  return object;
}

// A plugin that CONCORD_PLATFORM names by path need not be in a searched folder.
void add_chosen(PlatformsReport& report) {
  auto& candidates = report.survey.candidates;
  const auto is_it = [&](const loader::Candidate& candidate) { return is_chosen(report, candidate); };
  if (std::any_of(candidates.begin(), candidates.end(), is_it)) return;
  const loader::Plugin& plugin = *report.choice->plugin;
  loader::Candidate chosen{plugin.name, plugin.path, "CONCORD_PLATFORM", &plugin, 0, ""};
  try {
    chosen.devices = Platform(plugin).device_count();
  } catch (const Error& error) {
    chosen.reason = error.what();
  }
  candidates.insert(candidates.begin(), std::move(chosen));
}

}  // namespace

PlatformsReport survey_platforms() {
  PlatformsReport report{loader::survey_plugins(), std::nullopt, ""};
  try {
    report.choice = loader::named_choice();
    if (!report.choice) report.choice = loader::best_of(report.survey);
    add_chosen(report);
  } catch (const Error& error) {
    report.no_choice = error.what();
  }
  return report;
}

std::string platforms_text(const PlatformsReport& report) {
  std::string text = report.choice ? fmt::format("chosen: {} ({})\n\n", report.choice->plugin->name, report.choice->why)
                                   : fmt::format("chosen: none. {}\n\n", report.no_choice);
  for (const loader::Candidate& candidate : report.survey.candidates) text += candidate_text(report, candidate);
  if (!report.choice) return text;  // the reason above lists the places
  text += "\nsearched:\n";
  for (const loader::Folder& folder : report.survey.folders) {
    text +=
        fmt::format("  {} ({}){}{}\n", folder.path, folder.origin, folder.problem.empty() ? "" : ": ", folder.problem);
  }
  return text;
}

std::string platforms_json(const PlatformsReport& report) {
  ordered_json document{{"abi", to_string(loader::kHostVersion)}, {"chosen", nullptr}, {"problem", report.no_choice}};
  if (report.choice) {
    const loader::Plugin& plugin = *report.choice->plugin;
    document["chosen"] = {{"name", plugin.name}, {"path", plugin.path}, {"why", report.choice->why}};
  }
  document["plugins"] = ordered_json::array();
  for (const auto& candidate : report.survey.candidates)
    document["plugins"].push_back(candidate_json(report, candidate));
  document["folders"] = ordered_json::array();
  for (const loader::Folder& folder : report.survey.folders) {
    document["folders"].push_back({{"path", folder.path}, {"origin", folder.origin}, {"problem", folder.problem}});
  }
  return document.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

void add_platforms_command(CLI::App* program, int* exit_code) {
  const auto as_json = std::make_shared<bool>(false);
  CLI::App* app =
      program->add_subcommand("platforms", "list the plugins found, their devices, and which one is used and why");
  app->footer(kPlatformsFooter);
  app->add_flag("--json", *as_json, "one JSON document on standard output and nothing else there");
  app->callback([as_json, exit_code] {
    const PlatformsReport report = survey_platforms();
    std::printf("%s\n", (*as_json ? platforms_json(report) : platforms_text(report)).c_str());
    *exit_code = report.choice ? 0 : 1;
  });
}

}  // namespace concord
