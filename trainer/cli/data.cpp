#include "trainer/cli/data.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "core/base/files/hub_cache.h"
#include "core/base/files/output_check.h"
#include "core/base/files/paths.h"
#include "core/base/quoted.h"
#include "trainer/cli/setting_options.h"
#include "trainer/data/build/build.h"
#include "trainer/data/build/output_file.h"
#include "trainer/data/build/progress_printer.h"
#include "trainer/data/build/synthetic.h"
#include "trainer/data/text/records.h"

namespace concord {
namespace {

struct BuildCommand {
  BuildArguments arguments;
  TrainingArguments settings;
  bool json = false, images = false;
  // Megatron's, where they differ.
  std::string output_prefix, tokenizer_type, tokenizer_model;
  std::vector<std::string> json_keys = {"text"};
  std::vector<std::string> unused;  // values of kMegatronOptions
};

// An option of Megatron's tools/preprocess_data.py that changes nothing here, or is refused with a remedy.
struct MegatronOption {
  const char* name;
  bool is_flag;
  const char* remedy = nullptr;  // null: no effect
};
constexpr const char* kConvertTokenizer =
    "only HF tokenizers are read; write this one as a folder with a tokenizer.json (transformers' "
    "AutoTokenizer.from_pretrained(...).save_pretrained(DIR)) and give it as --tokenizer DIR";
constexpr const char* kAllCores = "--workers 0 uses all cores";
constexpr MegatronOption kMegatronOptions[] = {
    {"partitions", false},
    {"keep_sequential_samples", true},
    {"log_interval", false},
    {"keep_newlines", true},
    {"lang", false},
    {"workers_to_check", false},
    {"max_documents", false},
    {"performance_dir", false},
    {"vocab_size", false},
    {"padded_vocab_size", false},
    {"vocab_extra_ids", false},
    {"make_vocab_size_divisible_by", false},
    {"trust_remote_code", true},
    {"tokenizer_hf_no_use_fast", true},
    {"legacy_tokenizer", true},
    {"split_sentences", true, "documents are tokenized whole; write a line for each sentence instead"},
    {"find_optimal_num_workers", true, kAllCores},
    {"tokenizer_hf_include_special_tokens", true, "documents get no special tokens but the one of --append_eod"},
    {"tokenizer_special_tokens", false, kConvertTokenizer},
    {"special_tokens", false, kConvertTokenizer},
    {"tokenizer_prompt_format", false, "use --sft with --chat_template"},
    {"vocab_file", false, kConvertTokenizer},
    {"merge_file", false, kConvertTokenizer},
    {"tiktoken_pattern", false, kConvertTokenizer},
    {"tiktoken_num_special_tokens", false, kConvertTokenizer},
    {"tiktoken_special_tokens", false, kConvertTokenizer},
    {"tokenizer_sentencepiece_legacy", true, kConvertTokenizer},
};

// Makes what Megatron's options ask for the command's own arguments.
void take_megatron_options(const CLI::App& build, BuildCommand* given) {
  BuildArguments& arguments = given->arguments;
  for (const MegatronOption& option : kMegatronOptions) {
    if (build.get_option(fmt::format("--{}", option.name))->count() == 0) continue;
    if (option.remedy != nullptr) throw ConfigError(fmt::format("--{}: {}", option.name, option.remedy));
    std::fprintf(stderr, "note: --%s has no effect on the result\n", option.name);
  }
  const bool is_megatron = !given->output_prefix.empty();
  if (is_megatron == !arguments.output.empty()) {
    throw ConfigError("give one of --output and Megatron's --output_prefix, which adds _text_document to the prefix");
  }
  if (is_megatron && arguments.sft) throw ConfigError("--output_prefix is for text; use --output with --sft");
  if (!is_megatron && build.get_option("--json_keys")->count() > 0) {
    throw ConfigError("--json_keys needs --output_prefix, to which the names of the outputs are added");
  }
  if (is_megatron && build.get_option("--append_eod")->count() == 0) arguments.append_eod = false;
  std::string& tokenizer = given->settings.data.tokenizer;
  if (!given->tokenizer_type.empty() && given->tokenizer_type != "HuggingFaceTokenizer") {
    throw ConfigError(fmt::format("--tokenizer_type {}: {}", quoted(given->tokenizer_type), kConvertTokenizer));
  }
  if (tokenizer.empty() == given->tokenizer_model.empty()) {
    throw ConfigError("give one of --tokenizer and Megatron's --tokenizer_model");
  }
  if (tokenizer.empty()) tokenizer = given->tokenizer_model;
  arguments.tokenizer = local_model(tokenizer, "--tokenizer");
  arguments.chat_template = given->settings.data.chat_template;
  arguments.media = given->settings.data.media;
  if (!given->images) return;
  arguments.media.processor = arguments.tokenizer;
  arguments.output = without_trailing_slashes(arguments.output);
}

nlohmann::ordered_json run_build(const BuildArguments& arguments, bool json) {
  check_outside_live_runs("--output", arguments.output);
  ProgressPrinter printer("data build");
  const BuildProgress progress = build_data(arguments, [&](const BuildProgress& now) {
    printer.show([&](double seconds) { return progress_line(now, seconds); });
  });
  printer.end_line();
  if (json) {
    return {{"output", arguments.output},  {"documents", progress.documents}, {"tokens", progress.tokens},
            {"bytes", progress.bytes},     {"shards", progress.shards},       {"shards_kept", progress.shards_kept},
            {"seconds", printer.seconds()}};
  }
  const std::string kept =
      progress.shards_kept > 0 ? fmt::format(" ({} shards of an earlier build were kept)", progress.shards_kept) : "";
  std::printf("%s: %lld documents, %lld tokens in %.1f s%s\n", arguments.output.c_str(),
              static_cast<long long>(progress.documents), static_cast<long long>(progress.tokens), printer.seconds(),
              kept.c_str());
  return {};
}

// Builds a data set for each of Megatron's json_keys.
void run_builds(const BuildCommand& given) {
  if (given.output_prefix.empty()) {
    const nlohmann::ordered_json document = run_build(given.arguments, given.json);
    if (given.json) std::printf("%s\n", document.dump().c_str());
    return;
  }
  nlohmann::ordered_json documents = nlohmann::ordered_json::array();
  for (const std::string& key : given.json_keys) {
    BuildArguments one = given.arguments;
    one.output = fmt::format("{}_{}_document", given.output_prefix, key);
    if (key != "text") one.dataset.emplace().columns["prompt"] = key;
    documents.push_back(run_build(one, given.json));
  }
  if (given.json) std::printf("%s\n", (documents.size() == 1 ? documents[0] : documents).dump().c_str());
}

void add_megatron_options(CLI::App* build, BuildCommand* given) {
  const char* const group = "Options of Megatron's tools/preprocess_data.py";
  build
      ->add_option("--output_prefix", given->output_prefix,
                   "instead of --output: writes PREFIX_text_document.bin and .idx, by default without --append_eod")
      ->group(group);
  build->add_option("--json_keys", given->json_keys, "keys of the texts, each written as PREFIX_KEY_document")
      ->group(group);
  build->add_option("--tokenizer_type", given->tokenizer_type, "HuggingFaceTokenizer")->group(group);
  build->add_option("--tokenizer_model", given->tokenizer_model, "instead of --tokenizer")->group(group);
  for (const MegatronOption& option : kMegatronOptions) {
    const std::string name = fmt::format("--{}", option.name);
    CLI::Option* added =
        option.is_flag ? build->add_flag(name) : build->add_option(name, given->unused)->type_name("UNUSED");
    added->group("");  // not in the help
  }
}

void add_build(CLI::App* data) {
  const auto given = std::make_shared<BuildCommand>();
  BuildArguments& arguments = given->arguments;
  CLI::App* build = data->add_subcommand("build", "convert text or JSONL to a Megatron .bin/.idx pair");
  build
      ->add_option("--input", arguments.inputs,
                   ".txt (documents separated by empty lines), .jsonl (one document per line), .parquet, .arrow, "
                   ".json, compressed "
                   ".jsonl, or folders or patterns of such files; several are read in order")
      ->required();
  build->add_option("--output", arguments.output,
                    "PREFIX of the .bin and .idx files; with --sft a .jsonl file, with --images a "
                    "folder");
  add_setting(build,
              {.name = "tokenizer",
               .help = "tokenizer of the model: its folder or an HF tokenizer.json (needs Python with tokenizers); or "
                       "byte, for one token per byte"},
              &given->settings);
  build
      ->add_option("--append_eod", arguments.append_eod,
                   "append the tokenizer's end-of-document token to each document")
      ->expected(0, 1)
      ->default_str("true");
  build->add_flag("--sft", arguments.sft,
                  "convert conversations (\"messages\") to samples with loss on the assistant's tokens only");
  build->add_flag("--images", given->images,
                  "with --sft: conversations may have images and videos, converted by the processor in the folder of "
                  "--tokenizer (needs Python with transformers and pillow, for videos also torchvision and av); writes "
                  "a folder of .safetensors files");
  build->add_option("--max_shard_bytes", arguments.media_shard_bytes, "most bytes of a .safetensors file of --images")
      ->capture_default_str();
  for (const char* name : {"media_dir", "skip_bad_images", "image_max_pixels", "image_min_pixels", "video_max_pixels",
                           "video_min_pixels", "video_fps", "video_maxlen"}) {
    add_setting(build, {.name = name}, &given->settings);
  }
  add_setting(build, {.name = "chat_template", .help = "Jinja file, for --sft (default: the tokenizer's own template)"},
              &given->settings);
  build->add_option("--workers", arguments.workers, "number of parallel workers; 0: one per core")
      ->capture_default_str();
  build
      ->add_option("--shard_bytes", arguments.shard_bytes,
                   "approximate input bytes per shard; finished shards survive an interrupted build")
      ->capture_default_str();
  build->add_flag("--overwrite", arguments.overwrite,
                  "replace an existing output, and discard an unfinished build with other settings");
  build->add_flag("--json", given->json, "one JSON document on standard output");
  add_megatron_options(build, given.get());
  build->footer("An interrupted build resumes when the same command is run again; the result is identical.");
  build->callback([given, build] {
    take_megatron_options(*build, given.get());
    run_builds(*given);
  });
}

void add_convert(CLI::App* data) {
  const auto input = std::make_shared<std::string>(), output = std::make_shared<std::string>();
  const auto overwrite = std::make_shared<bool>(false);
  CLI::App* convert = data->add_subcommand("convert", "write the records of a table as .jsonl, which build takes");
  convert
      ->add_option("--input", *input, ".parquet, .arrow, .json (a list), .tar, .jsonl.gz, .jsonl.zst or .jsonl.xz file")
      ->required();
  convert->add_option("--output", *output, ".jsonl file to write")->required();
  convert->add_flag("--overwrite", *overwrite, "replace an existing file");
  convert->callback([input, output, overwrite] {
    if (!is_record_file(*input)) {
      throw ConfigError(fmt::format("--input is {}; the name must end in {}", *input, kRecordEndings));
    }
    if (!output->ends_with(".jsonl")) {
      throw ConfigError(fmt::format("--output is {}; the name must end in .jsonl", *output));
    }
    check_output_file("--output", *output, {.overwrite = *overwrite, .inputs = {*input}});
    OutputFile file(*output);
    stream_records(*input, [&](std::string_view lines) { file.write(lines); });
    file.sync();
    file.publish();
  });
}

void add_synth(CLI::App* data) {
  struct Given {
    std::string output;
    uint64_t seed = 1;
    int64_t tokens = 1 << 20;
    bool overwrite = false;
    bool json = false;
  };
  const auto given = std::make_shared<Given>();
  CLI::App* synth = data->add_subcommand("synth", "generate a corpus with a known entropy, the lowest achievable loss");
  synth->add_option("--output", given->output, "PREFIX of the .bin and .idx files")->required();
  synth->add_option("--seed", given->seed, "random seed of the Markov chain and its text")->capture_default_str();
  synth->add_option("--tokens", given->tokens, "number of tokens")->capture_default_str();
  synth->add_flag("--overwrite", given->overwrite, "replace existing files");
  synth->add_flag("--json", given->json, "one JSON document on standard output");
  synth->callback([given] {
    check_data_output(given->output, {.overwrite = given->overwrite});
    const SyntheticCorpus corpus = write_synthetic_corpus(given->output, given->seed, given->tokens);
    if (given->json) {
      const nlohmann::ordered_json document = {{"output", given->output},
                                               {"tokens", given->tokens},
                                               {"vocab_size", corpus.vocab_size},
                                               {"entropy_rate", corpus.entropy_rate},
                                               {"unigram_entropy", corpus.unigram_entropy}};
      return static_cast<void>(std::printf("%s\n", document.dump().c_str()));
    }
    std::printf(
        "%s: %lld tokens, vocabulary %lld; lowest achievable loss: %.4f nats per token (%.4f without the previous "
        "token as context)\n",
        given->output.c_str(), static_cast<long long>(given->tokens), static_cast<long long>(corpus.vocab_size),
        corpus.entropy_rate, corpus.unigram_entropy);
  });
}

}  // namespace

void add_data_command(CLI::App* program) {
  CLI::App* data = program->add_subcommand("data", "build training data files");
  data->require_subcommand(1);
  add_build(data);
  add_convert(data);
  add_synth(data);
}

}  // namespace concord
