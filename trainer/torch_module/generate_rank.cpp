#include "trainer/torch_module/generate_rank.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/base/config_error.h"
#include "core/mesh/initialize.h"
#include "core/models/parameter_plan.h"
#include "trainer/generation/generate.h"
#include "trainer/generation/prompts.h"
#include "trainer/torch_module/dtype_named.h"
#include "trainer/torch_module/terminal.h"

namespace concord {
namespace {

// The text of rank 0.
struct Texts {
  std::unique_ptr<Tokenizer> tokenizer;  // null if there is none
  std::vector<Prompt> prompts;
};

Texts read_texts(const GenerateArguments& given) {
  Texts texts;
  const std::string tokenizer = tokenizer_of_model(given.tokenizer, given.model);
  if (!tokenizer.empty()) texts.tokenizer = make_tokenizer(tokenizer, given.chat_template);
  if (is_conversation(given)) return texts;
  texts.prompts = given.prompts.empty() ? std::vector{make_prompt(given.prompt, given.chat, given.images, given.videos)}
                                        : read_prompts(given.prompts, given.chat);
  return texts;
}

std::string text_of(const Texts& texts, const std::vector<int64_t>& ids) {
  if (texts.tokenizer) return texts.tokenizer->decode(ids);
  std::string list;
  for (const int64_t id : ids) list += fmt::format("{}{}", list.empty() ? "" : " ", id);
  return list;
}

// Writes text to the terminal as it is generated.
class TokenPrinter {
 public:
  explicit TokenPrinter(Tokenizer& tokenizer) : text_(tokenizer), terminal_(open_terminal(false)) {}
  void add(int64_t id) { write(text_.add(id)); }
  void finish() { write(text_.finish() + "\n"); }

 private:
  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(terminal_, text.data(), text.size());
      if (written <= 0) return;  // the reader has closed it
      text.remove_prefix(static_cast<size_t>(written));
    }
  }

  IncrementalDetokenizer text_;
  int terminal_;
};

void print_all(const Texts& texts, const std::vector<Generated>& results) {
  for (size_t i = 0; i < results.size(); ++i) {
    const Prompt& prompt = texts.prompts[i];
    const std::string asked = prompt.kind == Prompt::Kind::ids ? text_of(texts, prompt.ids) : prompt.text;
    fmt::print("{}>>> {}\n{}\n", i > 0 ? "\n" : "", asked, text_of(texts, results[i].ids));
  }
}

void print_json(const GenerateArguments& given, const Texts& texts, const std::vector<std::vector<int64_t>>& prompts,
                const std::vector<Generated>& results, double seconds) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  size_t tokens = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    nlohmann::ordered_json each = {{"prompt", texts.prompts[i].text},
                                   {"prompt_ids", prompts[i]},
                                   {"ids", results[i].ids},
                                   {"text", nullptr},
                                   {"finish_reason", results[i].is_ended ? "stop" : "length"}};
    if (texts.tokenizer) each["text"] = texts.tokenizer->decode(results[i].ids);
    list.push_back(std::move(each));
    tokens += results[i].ids.size();
  }
  const nlohmann::ordered_json adapter = given.adapter.empty() ? nullptr : nlohmann::ordered_json(given.adapter);
  const nlohmann::ordered_json document = {
      {"model", given.model}, {"adapter", adapter}, {"generated", list},
      {"tokens", tokens},     {"seconds", seconds}, {"tokens_per_second", static_cast<double>(tokens) / seconds}};
  fmt::print("{}\n", document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

bool has_media(const Texts& texts) {
  return std::ranges::any_of(texts.prompts, [](const Prompt& prompt) { return !prompt.media.empty(); });
}

// The tokens of the prompts, and their images and videos.
std::vector<std::vector<int64_t>> encode(const GenerateArguments& given, const Texts& texts, const ParallelContext& job,
                                         std::vector<BatchMedia>* media) {
  if (!has_media(texts)) return encode_prompts(texts.prompts, texts.tokenizer.get());
  if (job.world() > 1) throw ConfigError(fmt::format("images in prompts need one process, not {}", job.world()));
  MediaProcessor processor({.processor = given.model});
  return encode_prompts(texts.prompts, texts.tokenizer.get(), processor, media);
}

ModelArgs model_args_of(const GenerateArguments& given, const ModelConfig& config, const ParallelContext& job) {
  ModelArgs args;
  if (!given.adapter.empty()) args.adapter = adapter_for(config, read_adapter_config(given.adapter));
  args.adapter_folder = given.adapter;
  if (args.adapter) args.merged_adapters = args.adapter->merged_adapters;
  if (!given.dtype.empty()) args.dtype = dtype_named(given.dtype);
  if (!given.layout.empty()) {
    args.stages = parse_layer_layout(given.layout, config.num_hidden_layers, job.layout().pp());
  }
  return args;
}

// The next line of standard input that is not blank; nullopt at its end.
std::optional<std::string> next_message() {
  for (std::string line;;) {
    if (isatty(STDIN_FILENO) == 1) {
      fmt::print("> ");
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line)) return std::nullopt;
    if (line.find_first_not_of(" \t\r") != std::string::npos) return line;
  }
}

// Answers the messages of standard input, each with all before it, until its end. |tokenizer| is null except on rank 0.
void converse(const GenerateArguments& given, VirtualModels& models, Tokenizer* tokenizer,
              const std::vector<int64_t>& ends, ParallelContext& job) {
  nlohmann::json messages = nlohmann::json::array();
  for (;;) {
    std::vector<std::vector<int64_t>> prompt;  // empty: the conversation is over
    const std::optional<std::string> message = job.rank() == 0 ? next_message() : std::nullopt;
    if (message) {
      messages.push_back({{"role", "user"}, {"content", *message}});
      const std::string text =
          nlohmann::json{{"messages", messages}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      prompt = encode_prompts({{Prompt::Kind::chat, text}}, tokenizer);
    }
    prompt = from_first_rank(prompt, job);
    if (prompt.empty()) return;
    std::optional<TokenPrinter> stream;
    if (message) stream.emplace(*tokenizer);
    const std::vector<Generated> answer = generate(models, prompt, ends, given.options, job, [&](size_t, int64_t id) {
      if (stream) stream->add(id);
    });
    if (!stream) continue;
    stream->finish();
    messages.push_back({{"role", "assistant"}, {"content", tokenizer->decode(answer.front().ids)}});
  }
}

void run(const GenerateArguments& given, ParallelContext& job) {
  const bool is_first = job.rank() == 0;
  Texts texts;
  std::vector<std::vector<int64_t>> prompts;
  std::vector<BatchMedia> media;
  if (is_first) {
    texts = read_texts(given);
    prompts = encode(given, texts, job, &media);
  }
  prompts = from_first_rank(prompts, job);
  const std::vector<int64_t> ends = from_first_rank({end_tokens(given.model, texts.tokenizer.get())}, job).front();
  ModelArgs args = model_args_of(given, read_model_config(given.model), job);
  args.vision_tower = !media.empty();
  VirtualModels models = AutoModel::from_pretrained(given.model, args, job);
  if (is_conversation(given)) return converse(given, models, texts.tokenizer.get(), ends, job);
  std::optional<TokenPrinter> stream;
  if (is_first && !given.json && given.prompts.empty() && texts.tokenizer) stream.emplace(*texts.tokenizer);
  const auto begin = std::chrono::steady_clock::now();
  const auto show = [&](size_t, int64_t id) {
    if (stream) stream->add(id);
  };
  const std::vector<Generated> results = generate(models, prompts, ends, given.options, job, show, media);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!is_first) return;
  if (stream) return stream->finish();
  given.json ? print_json(given, texts, prompts, results, seconds) : print_all(texts, results);
}

}  // namespace

void check_generate(const GenerateArguments& given, int64_t world) {
  if (!given.dtype.empty()) dtype_named(given.dtype);
  const ModelConfig config = read_model_config(given.model);
  const RankLayout layout = layout_of(given.sizes, world);
  const StageLayers whole{.embedding = true, .layers = config.num_hidden_layers, .loss = true};
  plan_parameters(config, whole, {.tp = layout.tp()});
  if (!given.adapter.empty()) adapter_for(config, read_adapter_config(given.adapter));
}

void generate_rank(const GenerateArguments& given) {
  ParallelContext& job = initialize(given.sizes);
  run(given, job);
  finalize();
}

}  // namespace concord
