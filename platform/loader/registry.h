// The plugins of this process: found, opened once each, never unloaded; and the choice among them.
//
// Threads: every function, any thread. Whoever asks for a plugin that another thread is opening waits for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "platform/loader/error.h"
#include "platform/loader/negotiate.h"
#include "platform/loader/search_path.h"

namespace concord::loader {

// An opened plugin. Lives until the process ends and never changes.
struct Plugin {
  std::string name;  // core.name
  std::string path;  // the real path of its file
  Version version;   // ABI version that the plugin was built with
  Tables tables;     // complete; wrapped in the layers of CONCORD_LAYERS
  Tables unwrapped;  // |tables| without layers
  const concord_plugin* root;

  const concord_table_header* find_table(const char* table_name) const {
    return root->find_table(root->self, table_name);
  }
};

// One file that was looked at.
struct Candidate {
  std::string name;                // from the plugin, or else from its file
  std::string path;                // as it was searched for
  std::string origin;              // why it was looked at: "CONCORD_PLUGIN_PATH", ...
  const Plugin* plugin = nullptr;  // null if it could not be opened
  int32_t devices = 0;
  std::string reason;  // why it was refused, or cannot be chosen automatically; empty if it can
};

// The plugins found in all places. A survey opens every plugin on the path.
struct Survey {
  std::vector<Folder> folders;
  std::vector<Candidate> candidates;
};
Survey survey_plugins();

struct Choice {
  const Plugin* plugin;
  std::string why;  // "named by CONCORD_PLATFORM"; "priority 100, the highest of 2 plugins with a device"
};

// Returns the best of a survey: the highest priority among plugins that report a device and have no negative priority,
// then the first by name. Throws Error (UNAVAILABLE) with every place and reason if there is none.
Choice best_of(const Survey& survey);

// Opens the plugin called |name_or_path|; with a '/' it is a path. Throws Error with every place tried and its reason.
const Plugin& open_plugin(const std::string& name_or_path);

// Returns the plugin that CONCORD_PLATFORM names; nullopt if it is not set. Throws Error if it cannot be opened.
std::optional<Choice> named_choice();

// named_choice(), else best_of(survey_plugins()), with one line in the log. Decided again at each call.
Choice choose_plugin();

// The plugin of this process: choose_plugin(), asked once.
const Plugin& current_plugin();

// One line a place or file: "  /usr/lib/concord/libconcord_cuda.so: reason".
std::string list_places(const Survey& survey);

}  // namespace concord::loader
