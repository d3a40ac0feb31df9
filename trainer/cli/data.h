// `concord data`: makes the files that training reads.
#pragma once

namespace CLI {
class App;
}

namespace concord {

// Adds `data build`, `data convert` and `data synth` to |program|. Parsing runs them; throws ConfigError for invalid
// settings.
void add_data_command(CLI::App* program);

}  // namespace concord
