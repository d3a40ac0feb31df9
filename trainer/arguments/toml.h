// torchtitan's configurations: TOML's sections, names and plain values, to the same list that YAML gives. `steps = 10`
// in [training] is called training.steps. What these files do not have is refused: tables in values, text over several
// lines, dates.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trainer/arguments/yaml.h"

namespace concord {

// Throws ConfigError, "file:line: ...", for the first thing that cannot be read.
std::vector<YamlEntry> parse_toml(std::string_view text, const std::string& file);

}  // namespace concord
