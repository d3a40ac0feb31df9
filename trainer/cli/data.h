// `concord data`: makes the files that training reads.
#pragma once

#include <CLI/CLI.hpp>

namespace concord {

// Adds `data build` and `data synth` to |program|. Parsing runs them; ConfigError comes out for what cannot be.
void add_data_command(CLI::App* program);

}  // namespace concord
