// `concord platforms`: the plugins that were found, where, what they can do, and which one would be used and why.
#pragma once

#include <optional>
#include <string>

#include "platform/loader/registry.h"

namespace CLI {
class App;
}

namespace concord {

// Plugins that were found, and the one that was chosen.
struct PlatformsReport {
  loader::Survey survey;
  std::optional<loader::Choice> choice;
  std::string no_choice;  // why none was chosen
};

// Opens every plugin on the path. Throws Error only if a setting is invalid.
PlatformsReport survey_platforms();

std::string platforms_text(const PlatformsReport& report);
std::string platforms_json(const PlatformsReport& report);  // one document

// Adds the subcommand to |program|. Exit code 1 if no platform can be used.
void add_platforms_command(CLI::App* program, int* exit_code);

}  // namespace concord
