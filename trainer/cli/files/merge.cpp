#include "trainer/cli/files/merge.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/base/bytes_text.h"
#include "core/base/files/hub_cache.h"
#include "core/base/files/output_check.h"
#include "core/base/quoted.h"
#include "core/models/adapters/adapter_config.h"
#include "trainer/cli/files/convert.h"
#include "trainer/cli/setting_options.h"

namespace concord {
namespace {

struct MergeArguments {
  TrainingArguments settings;  // model
  std::string adapter, out, dtype, max_shard_size = "5GB";
  bool json = false;
};

int run_merge(const MergeArguments& arguments) {
  const std::string model = local_model(arguments.settings.model.path, "--model");
  const std::string adapter = local_model(arguments.adapter, "--adapter");
  const ConvertOptions options{.from = model.empty() ? base_folder_of(adapter) : model,
                               .to = arguments.out,
                               .adapter = adapter,
                               .dtype = parse_weight_type(arguments.dtype),
                               .max_shard_bytes = parse_size(arguments.max_shard_size)};
  check_outside_live_runs("--out", options.to);
  const auto [merged, seconds] = convert_with_progress(options, "merge");
  if (arguments.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"model", options.from},
                                              {"adapter", options.adapter},
                                              {"out", options.to},
                                              {"files", merged.files},
                                              {"tensors", merged.tensors},
                                              {"changed", merged.changed},
                                              {"bytes", merged.bytes},
                                              {"seconds", seconds}}
                           .dump());
  } else {
    fmt::print("{}: {} of {} tensors changed, in {} files, {} in {:.1f} s\n", printable(options.to), merged.changed,
               merged.tensors, merged.files, bytes_text(merged.bytes), seconds);
  }
  return 0;
}

}  // namespace

void add_merge_command(CLI::App* program, int* exit_code) {
  CLI::App* app = program->add_subcommand("merge", "an adapter added to the weights of its base model");
  const auto arguments = std::make_shared<MergeArguments>();
  add_setting(app,
              {.name = "model",
               .help = "Hugging Face folder of the base model; default: base_model_name_or_path of the adapter"},
              &arguments->settings);
  app->add_option("--adapter", arguments->adapter, "folder with adapter_config.json and adapter_model.safetensors")
      ->required();
  app->add_option("--out", arguments->out, "the Hugging Face folder to write; must not exist, or be empty")->required();
  add_file_options(app, &arguments->dtype, &arguments->max_shard_size);
  app->add_flag("--json", arguments->json, "print one JSON document");
  app->footer(
      "W + scale * B A for every module of the adapter, rounded as peft's merge_and_unload does; all other weights,\n"
      "config.json, the tokenizer and the generation config are those of the base model. Memory does not depend on "
      "the\n"
      "model. Exit codes: 0 written, 1 failed, 2 wrong usage.");
  app->callback([arguments, exit_code] { *exit_code = run_merge(*arguments); });
}

}  // namespace concord
