// `concord convert --from DIR --to DIR`: weights in another type or in files of another size. Needs neither libtorch
// nor a device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/models/convert.h"
#include "core/safetensors/dtype.h"

namespace CLI {
class App;
}

namespace concord {

// Bytes of "5GB", "500MB", "2GiB" or "1000000"; GB is 10^9 and GiB 2^30, as in transformers. Throws ConfigError.
int64_t parse_size(const std::string& text);
// The type of "bfloat16"; none for an empty text. Throws ConfigError.
std::optional<safetensors::DType> parse_weight_type(const std::string& text);

// Adds --dtype and --max_shard_size of the files that a command writes.
void add_file_options(CLI::App* app, std::string* dtype, std::string* max_shard_size);

// convert_weights with a progress bar of |name|, and how long it took.
struct TimedConversion {
  Converted result;
  double seconds = 0;
};
TimedConversion convert_with_progress(const ConvertOptions& options, const char* name);

// Adds the subcommand to |program|. Parsing throws ConfigError if the input or the output folder is invalid.
void add_convert_command(CLI::App* program, int* exit_code);

}  // namespace concord
