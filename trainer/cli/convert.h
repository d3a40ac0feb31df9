// `concord convert --from DIR --to DIR`: weights in another type or in files of another size. Needs neither libtorch
// nor a device.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace concord {

// Bytes of "5GB", "500MB", "2GiB" or "1000000"; GB is 10^9 and GiB 2^30, as in transformers. Throws ConfigError.
int64_t parse_size(const std::string& text);

// Adds the subcommand to |program|. Throws ConfigError for what cannot be converted, or not to there.
void add_convert_command(CLI::App* program, int* exit_code);

}  // namespace concord
