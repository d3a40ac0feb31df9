#include "trainer/cli/generate.h"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/files/hub_cache.h"
#include "core/base/files/input_file.h"
#include "core/models/adapters/adapter_config.h"
#include "core/models/config.h"
#include "trainer/cli/rank_command.h"
#include "trainer/cli/setting_options.h"
#include "trainer/data/text/tokenizer_process.h"
#include "trainer/generation/generate_arguments.h"
#include "trainer/generation/prompts.h"
#include "trainer/torch_module/loader.h"

namespace concord {
namespace {

constexpr const char* kGenerateFooter =
    R"(Text goes through the tokenizer of the model's folder, with --chat through its chat template as well:
  concord generate --model DIR --prompt "Once upon a time"
  concord generate --model DIR --chat                          a conversation, a line per message, until Ctrl-D
  concord generate --model DIR --prompt "Who are you?" --chat --temperature 0.7 --top_p 0.9
  concord generate --model DIR --prompt "What is it?" --chat --image cat.jpg
  concord generate --model DIR --prompts questions.jsonl --json --nproc 2 --tensor_model_parallel_size 2
A line of a .jsonl is {"prompt": ...}, {"messages": [...]} or {"input_ids": [...]}; other files have a prompt per line.
Without --temperature the most probable token is taken. With the same seed the same text comes from every layout and
device, except where two tokens are so close that rounding decides.
--nproc starts processes on this machine; torchrun, srun, mpirun and concord launch work too.)";

// All checks that do not need libtorch.
void check_generate_args(const GenerateArguments& given) {
  if (given.prompt.empty() == given.prompts.empty() && !is_conversation(given)) {
    throw ConfigError("generate needs either --prompt TEXT or --prompts FILE, or --chat for a conversation");
  }
  check_sampling(given.options.sampling);
  if (!(given.images.empty() && given.videos.empty()) && given.prompt.empty()) {
    throw ConfigError("--image and --video need --prompt TEXT and --chat");
  }
  make_prompt(given.prompt, given.chat, given.images, given.videos);
  bool needs_tokenizer = given.prompts.empty();
  if (!given.prompts.empty()) {
    for (const Prompt& prompt : read_prompts(given.prompts, given.chat)) {
      needs_tokenizer |= prompt.kind != Prompt::Kind::ids;
    }
  }
  if (!given.chat_template.empty()) InputFile(given.chat_template, "give a Jinja file for --chat_template");
  if (!given.tokenizer.empty() && given.tokenizer != "byte") tokenizer_file(given.tokenizer);
  read_model_config(given.model);
  if (!given.adapter.empty()) read_adapter_config(given.adapter);
  if (needs_tokenizer && tokenizer_of_model(given.tokenizer, given.model).empty()) {
    throw ConfigError(
        fmt::format("{} has no tokenizer.json; pass the model's tokenizer with --tokenizer, --tokenizer "
                    "byte if it was trained on bytes, or tokens as {{\"input_ids\": [...]}} in --prompts",
                    given.model));
  }
}

// --model may be the folder of an adapter, which names its base model. Its tokenizer is that of the training.
void resolve_adapter(GenerateArguments* given) {
  given->model = local_model(given->model, "--model");
  given->adapter = local_model(given->adapter, "--adapter");
  given->tokenizer = local_model(given->tokenizer, "--tokenizer");
  if (given->adapter.empty() && has_adapter(given->model)) {
    given->adapter = std::exchange(given->model, base_folder_of(given->model));
  }
  if (given->adapter.empty() || !given->tokenizer.empty()) return;
  given->tokenizer = tokenizer_of_model({}, given->adapter);
}

int run_generate(GenerateArguments given, int64_t nproc) {
  resolve_adapter(&given);
  check_generate_args(given);
  const int64_t world = ranks_of_command(nproc);
  // Errors are reported before any process waits for another one.
  torch_module().check_generate(given, world);
  if (nproc > 1) {
    if (isatty(STDOUT_FILENO) == 1 && !given.json) {
      if (const char* name = ttyname(STDOUT_FILENO)) setenv(kTerminalVariable, name, 1);
    }
    return launch_ranks(nproc);
  }
  torch_module().generate(given);
  return 0;
}

void add_sampling(CLI::App* app, GenerateOptions* options) {
  SamplingOptions& sampling = options->sampling;
  app->add_option("--max_new_tokens", options->max_new_tokens, "most tokens to generate for a prompt")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  app->add_option("--temperature", sampling.temperature, "logits are divided by it; 0: always the most probable token")
      ->capture_default_str();
  app->add_option("--top_k", sampling.top_k, "sample from the k most probable tokens; 0: from all")
      ->capture_default_str();
  app->add_option("--top_p", sampling.top_p, "sample from the most probable tokens with this probability together")
      ->capture_default_str();
  app->add_option("--seed", sampling.seed, "seed of the random choice")->capture_default_str();
  app->add_option("--batch_size", options->batch_size, "prompts computed together; does not change the text")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
}

// Returns |given| with the values of the options that are settings of `concord train` too.
GenerateArguments with_settings(GenerateArguments given, const TrainingArguments& settings) {
  given.model = settings.model.path;
  given.tokenizer = settings.data.tokenizer;
  given.chat_template = settings.data.chat_template;
  given.layout = settings.pipeline.layout;
  given.sizes = settings.job;
  return given;
}

}  // namespace

void add_generate_command(CLI::App* program, int* exit_code) {
  const auto given = std::make_shared<GenerateArguments>();
  const auto settings = std::make_shared<TrainingArguments>();
  CLI::App* app = program->add_subcommand("generate", "let a model continue a prompt or answer in a chat");
  app->footer(kGenerateFooter);
  add_setting(app, {.name = "model", .help = "Hugging Face folder, checkpoint, or folder of an adapter"},
              settings.get())
      ->required();
  app->add_option("--adapter", given->adapter, "folder of an adapter for the model");
  app->add_option("--prompt", given->prompt, "text to continue");
  app->add_option("--image", given->images, "file of an image before --prompt, with --chat; several in this order")
      ->allow_extra_args(false);
  app->add_option("--video", given->videos, "file of a video before --prompt and after the images, with --chat")
      ->allow_extra_args(false);
  app->add_option("--prompts", given->prompts, "file with prompts, .jsonl or one per line");
  app->add_flag("--chat", given->chat, "the prompt is a message, which the model answers; without one: a conversation");
  add_settings(app, {{.name = "tokenizer"}, {.name = "chat_template"}}, settings.get());
  add_dtype(app, &given->dtype);
  add_sampling(app, &given->options);
  app->add_flag("--json", given->json, "print one JSON document");
  add_nproc(app, settings.get());
  add_settings(app,
               {{.name = "tensor_model_parallel_size"},
                {.name = "pipeline_model_parallel_size"},
                {.name = "virtual_pipeline_model_parallel_size"},
                {.name = "pipeline_model_parallel_layout"},
                {.name = "platform"},
                {.name = "ddp_timeout"}},
               settings.get());
  app->callback([given, settings, exit_code] {
    use_platform(settings->job.platform);
    *exit_code = run_generate(with_settings(*given, *settings), settings->launch.nproc);
  });
}

}  // namespace concord
