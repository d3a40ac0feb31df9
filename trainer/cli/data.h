// `concord data`: makes the files that training reads.
#pragma once

namespace CLI {
class App;
}

namespace concord {

// Adds `data build` and `data synth` to |program|. Parsing runs them; ConfigError comes out for what cannot be.
void add_data_command(CLI::App* program);

}  // namespace concord
