#include "platform/loader/registry.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "platform/base/thread_safety.hpp"
#include "platform/layers/layers.h"
#include "platform/loader/dynamic_library.h"
#include "platform/loader/elf_file.h"
#include "platform/loader/host.h"
#include "platform/loader/text.h"

namespace concord::loader {
namespace {

namespace fs = std::filesystem;

// Runs |body|, which calls the plugin; any exception becomes an Error.
template <class Body>
auto guarded(const char* what, Body&& body) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(CONCORD_STATUS_INTERNAL,
                cat(what, " threw an exception, which is not allowed for plugins: ", error.what()));
  } catch (...) {
    throw Error(CONCORD_STATUS_INTERNAL, cat(what, " threw an exception, which is not allowed for plugins"));
  }
}

const concord_plugin* call_open(const DynamicLibrary& library, const std::string& path) {
  auto* open = reinterpret_cast<concord_plugin_open_function>(library.symbol(CONCORD_PLUGIN_ENTRY));
  if (open == nullptr) {
    throw Error(CONCORD_STATUS_ABI_MISMATCH, cat("it does not export " CONCORD_PLUGIN_ENTRY ", so it is not a plugin"));
  }
  take_error_detail();  // discards the message of an earlier failure
  const concord_plugin* root = nullptr;
  const concord_host* host = make_host(plugin_name_of_file(path));
  const concord_status status = guarded(CONCORD_PLUGIN_ENTRY, [&] { return open(host, &root); });
  if (status != CONCORD_STATUS_OK) {
    const std::string detail = take_error_detail();
    throw Error(status, cat(CONCORD_PLUGIN_ENTRY " failed with ", status_name(status), ": ",
                            detail.empty() ? "the plugin gave no reason" : detail));
  }
  if (root == nullptr) {
    throw Error(CONCORD_STATUS_INTERNAL, CONCORD_PLUGIN_ENTRY " returned OK, but no plugin (null)");
  }
  return root;
}

std::unique_ptr<Plugin> load(const DynamicLibrary& library, const std::string& path) {
  auto plugin = std::make_unique<Plugin>();
  plugin->path = path;
  plugin->root = call_open(library, path);
  const Negotiated negotiated = guarded("find_table", [&] { return negotiate(plugin->root); });
  plugin->version = negotiated.version;
  plugin->unwrapped = negotiated.tables;
  plugin->name = plugin->unwrapped.core.name;
  plugin->tables = layers::wrap(plugin->unwrapped);
  return plugin;
}

// The result of opening a file: a plugin, or the failure that every later attempt gets too, because concord_plugin_open
// is called once per process.
struct Outcome {
  std::unique_ptr<Plugin> plugin;
  std::optional<Error> failure;

  const Plugin& get() const {
    if (failure) throw *failure;
    return *plugin;
  }
};

struct Registry {
  std::mutex mutex;  // held while opening, so that the second who asks waits for the first
  std::map<std::string, Outcome*> by_path CONCORD_GUARDED_BY(mutex);
  std::map<void*, std::unique_ptr<Outcome>> by_handle
      CONCORD_GUARDED_BY(mutex);  // a hard link has another path and the same library
};

Registry& registry() {
  static auto* all = new Registry();  // never destroyed: plugins are never unloaded
  return *all;
}

const Plugin& open_file(const std::string& path) {
  if (std::string why = why_not_loadable(path); !why.empty()) throw Error(CONCORD_STATUS_UNAVAILABLE, why);
  layers::check_settings();  // before any plugin is opened: a typo there is not a plugin's failure
  const std::string real = fs::canonical(path).string();
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.by_path.find(real); found != all.by_path.end()) return found->second->get();
  const DynamicLibrary library = guarded("the library's start-up code", [&] { return DynamicLibrary::open(real); });
  std::unique_ptr<Outcome>& outcome = all.by_handle[library.handle()];
  if (outcome == nullptr) {
    outcome = std::make_unique<Outcome>();
    try {
      outcome->plugin = load(library, real);
    } catch (const Error& error) {
      outcome->failure = error;
    }
  }
  all.by_path[real] = outcome.get();
  return outcome->get();
}

// Asks for the devices and says in |candidate| what keeps it from being chosen automatically.
void assess(Candidate& candidate) {
  const concord_device_table& table = candidate.plugin->tables.device;
  take_error_detail();
  try {
    const concord_status status = guarded("device.count", [&] { return table.count(table.self, &candidate.devices); });
    if (status != CONCORD_STATUS_OK) {
      candidate.devices = 0;
      const std::string detail = take_error_detail();
      candidate.reason = cat("it reports no device: ", status_name(status), detail.empty() ? "" : ": ", detail);
    } else if (candidate.devices <= 0) {
      candidate.reason = "it reports no device";
    } else if (candidate.plugin->tables.core.priority < 0) {
      candidate.reason = "its priority is negative: it is used only if CONCORD_PLATFORM names it";
    }
  } catch (const Error& error) {
    candidate.devices = 0;
    candidate.reason = error.what();
  }
}

Candidate examine(const std::string& path, const std::string& origin) {
  Candidate candidate{plugin_name_of_file(path), path, origin, nullptr, 0, ""};
  try {
    candidate.plugin = &open_file(path);
    candidate.name = candidate.plugin->name;
    assess(candidate);
  } catch (const Error& error) {
    candidate.reason = error.what();
  }
  return candidate;
}

std::string describe_folder(const Folder& folder) { return cat(folder.path, " (", folder.origin, ")"); }

std::string found_names(const std::vector<Folder>& folders) {
  std::vector<std::string> names;
  for (const Folder& folder : folders) {
    for (const std::string& file : plugin_files(folder)) names.push_back(plugin_name_of_file(file));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names.empty() ? "none" : join(names, ", ");
}

const Plugin& open_by_name(const std::string& name) {
  std::string tried;
  concord_status worst = CONCORD_STATUS_UNAVAILABLE;
  const std::vector<Folder> folders = plugin_folders();
  for (const Folder& folder : folders) {
    const std::string path = (fs::path(folder.path) / plugin_file_name(name)).string();
    std::string why = folder.problem;
    if (why.empty()) {
      try {
        return open_file(path);
      } catch (const Error& error) {
        why = error.what();
        if (error.status() != CONCORD_STATUS_UNAVAILABLE) worst = error.status();
      }
    }
    tried += cat("\n  ", path, " (", folder.origin, "): ", why);
  }
  if (!setting("plugin.path")) tried += "\n  CONCORD_PLUGIN_PATH: not set";
  throw Error(worst, cat("no platform '", name, "'; tried:", tried, "\nplatforms found there: ", found_names(folders),
                         ". Name one of them, or give the path of a plugin (with a '/')."));
}

const Plugin& open_by_path(const std::string& path) {
  try {
    return open_file(path);
  } catch (const Error& error) {
    throw Error(error.status(), cat("no platform from this file:\n  ", path, ": ", error.what(),
                                    "\nplatforms found on the path: ", found_names(plugin_folders())));
  }
}

std::string count_devices(int32_t devices) { return cat(devices, devices == 1 ? " device" : " devices"); }

void log_choice(const Choice& choice, const Survey& survey) {
  std::string others;
  for (const Candidate& candidate : survey.candidates) {
    if (candidate.plugin == choice.plugin) continue;
    others +=
        cat(others.empty() ? "; not " : "; nor ", candidate.name, ": ",
            candidate.reason.empty() ? cat("priority ", candidate.plugin->tables.core.priority) : candidate.reason);
  }
  log(CONCORD_LOG_INFO, "", cat("platform ", choice.plugin->name, " chosen (", choice.why, ")", others));
}

}  // namespace

Survey survey_plugins() {
  layers::check_settings();
  Survey survey{plugin_folders(), {}};
  std::map<std::string, std::string> taken;  // file name -> the path that shadows it
  for (const Folder& folder : survey.folders) {
    for (const std::string& path : plugin_files(folder)) {
      const std::string file = fs::path(path).filename().string();
      if (const auto first = taken.find(file); first != taken.end()) {
        survey.candidates.push_back({plugin_name_of_file(path), path, folder.origin, nullptr, 0,
                                     cat("skipped: ", first->second, " takes precedence")});
        continue;
      }
      survey.candidates.push_back(examine(path, folder.origin));
      if (survey.candidates.back().plugin != nullptr) taken[file] = path;
    }
  }
  return survey;
}

Choice best_of(const Survey& survey) {
  const Candidate* best = nullptr;
  int competing = 0;
  for (const Candidate& candidate : survey.candidates) {
    if (candidate.plugin == nullptr || !candidate.reason.empty()) continue;
    ++competing;
    const auto rank = [](const Candidate& c) { return std::pair(-int64_t{c.plugin->tables.core.priority}, c.name); };
    if (best == nullptr || rank(candidate) < rank(*best)) best = &candidate;
  }
  if (best == nullptr) {
    throw Error(CONCORD_STATUS_UNAVAILABLE,
                cat("no platform: no plugin reports a device; tried:", list_places(survey),
                    "\nSet CONCORD_PLUGIN_PATH to the folder of the plugins, or CONCORD_PLATFORM to one of them."));
  }
  const std::string rank = cat("priority ", best->plugin->tables.core.priority, ", ", count_devices(best->devices));
  return {best->plugin, competing == 1 ? cat(rank, ", the only one with a device")
                                       : cat(rank, ", the highest of ", competing, " with a device")};
}

const Plugin& open_plugin(const std::string& name_or_path) {
  if (name_or_path.empty()) {
    throw Error(CONCORD_STATUS_INVALID_ARGUMENT, "no platform: the name is empty; give a name or the path of a plugin");
  }
  return is_path(name_or_path) ? open_by_path(name_or_path) : open_by_name(name_or_path);
}

std::optional<Choice> named_choice() {
  const auto name = setting("platform");
  if (!name) return std::nullopt;
  return Choice{&open_plugin(*name), cat("CONCORD_PLATFORM is ", *name)};
}

Choice choose_plugin() {
  if (const auto choice = named_choice()) {
    log(CONCORD_LOG_INFO, "",
        cat("platform ", choice->plugin->name, " chosen (", choice->why, "): ", choice->plugin->path));
    return *choice;
  }
  const Survey survey = survey_plugins();
  const Choice choice = best_of(survey);
  log_choice(choice, survey);
  return choice;
}

const Plugin& current_plugin() {
  static const Plugin& plugin = *choose_plugin().plugin;
  return plugin;
}

std::string list_places(const Survey& survey) {
  std::string text;
  for (const Folder& folder : survey.folders) {
    if (!folder.problem.empty()) text += cat("\n  ", describe_folder(folder), ": ", folder.problem);
    const bool any = std::any_of(survey.candidates.begin(), survey.candidates.end(), [&](const Candidate& candidate) {
      return fs::path(candidate.path).parent_path() == fs::path(folder.path);
    });
    if (folder.problem.empty() && !any) text += cat("\n  ", describe_folder(folder), ": no libconcord_*.so in it");
  }
  for (const Candidate& candidate : survey.candidates) {
    text += cat("\n  ", candidate.path, " (", candidate.origin, "): ", candidate.reason);
  }
  return text;
}

}  // namespace concord::loader
