#include "trainer/cli/files/convert.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/bytes_text.h"
#include "core/base/config_error.h"
#include "core/base/files/hub_cache.h"
#include "core/base/files/output_check.h"
#include "core/base/quoted.h"
#include "core/models/convert.h"
#include "trainer/data/build/progress_printer.h"

namespace concord {
namespace {

struct ConvertArguments {
  std::string from, to, dtype, max_shard_size = "5GB";
  bool ema = false;
  bool json = false;
};

int run_convert(const ConvertArguments& arguments) {
  const ConvertOptions options{.from = local_model(arguments.from, "--from"),
                               .to = arguments.to,
                               .average = arguments.ema,
                               .dtype = parse_weight_type(arguments.dtype),
                               .max_shard_bytes = parse_size(arguments.max_shard_size)};
  check_outside_live_runs("--to", options.to);
  const auto [converted, seconds] = convert_with_progress(options, "convert");
  if (arguments.json) {
    fmt::print("{}\n",
               nlohmann::ordered_json{{"from", options.from},
                                      {"to", options.to},
                                      {"dtype", arguments.dtype.empty() ? nlohmann::ordered_json()
                                                                        : nlohmann::ordered_json(arguments.dtype)},
                                      {"files", converted.files},
                                      {"tensors", converted.tensors},
                                      {"bytes", converted.bytes},
                                      {"seconds", seconds}}
                   .dump());
  } else {
    fmt::print("{}: {} tensors in {} files, {} in {:.1f} s\n", printable(options.to), converted.tensors,
               converted.files, bytes_text(converted.bytes), seconds);
  }
  return 0;
}

}  // namespace

TimedConversion convert_with_progress(const ConvertOptions& options, const char* name) {
  ProgressPrinter printer(name);
  const Converted result =
      convert_weights(options, [&](uint64_t done, uint64_t all) { printer.show_bytes(done, all); });
  return {result, printer.seconds()};
}

std::optional<safetensors::DType> parse_weight_type(const std::string& text) {
  if (text.empty()) return std::nullopt;
  using safetensors::DType;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (text == torch_name(dtype)) return dtype;
  }
  throw ConfigError(fmt::format("invalid --dtype {}: must be float32, bfloat16 or float16", quoted(text)));
}

int64_t parse_size(const std::string& text) {
  static constexpr std::pair<const char*, double> kUnits[] = {
      {"", 1},      {"b", 1},         {"kb", 1e3},      {"mb", 1e6},      {"gb", 1e9},
      {"tb", 1e12}, {"kib", 0x1p+10}, {"mib", 0x1p+20}, {"gib", 0x1p+30}, {"tib", 0x1p+40}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  unit.erase(0, unit.find_first_not_of(' '));
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const auto& [name, size] : kUnits) {
    if (error != std::errc() || unit != name || !(number * size >= 1 && number * size < 0x1p+62)) continue;
    return static_cast<int64_t>(number * size);
  }
  throw ConfigError(
      fmt::format("invalid size {}: must be a number above 0 with a unit: 5GB, 500MB, 2GiB", quoted(text)));
}

void add_file_options(CLI::App* app, std::string* dtype, std::string* max_shard_size) {
  app->add_option("--dtype", *dtype,
                  "float32, bfloat16 or float16, for all floating-point weights; default: as they are");
  app->add_option("--max_shard_size", *max_shard_size, "most bytes of tensors in a file: 5GB, 500MB, 2GiB")
      ->capture_default_str();
}

void add_convert_command(CLI::App* program, int* exit_code) {
  CLI::App* app = program->add_subcommand("convert", "weights in another type, or in files of another size");
  const auto arguments = std::make_shared<ConvertArguments>();
  app->add_option("--from", arguments->from, "a checkpoint or a Hugging Face folder")->required();
  app->add_option("--to", arguments->to, "the Hugging Face folder to write; must not exist, or be empty")->required();
  add_file_options(app, &arguments->dtype, &arguments->max_shard_size);
  app->add_flag("--ema", arguments->ema, "of a checkpoint: the average that ema_decay kept, instead of the weights");
  app->add_flag("--json", arguments->json, "print one JSON document");
  app->footer(
      "Rounds to the nearest, from the middle to even, as torch does. Copies config.json (with the new type), the\n"
      "tokenizer and the generation config; leaves out optimizer state and checksums. Exit codes: 0 written, 1 "
      "failed,\n"
      "2 wrong usage.");
  app->callback([arguments, exit_code] { *exit_code = run_convert(*arguments); });
}

}  // namespace concord
