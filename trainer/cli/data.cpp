#include "trainer/cli/data.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "core/base/files/output_check.h"
#include "trainer/cli/setting_options.h"
#include "trainer/data/build/build.h"
#include "trainer/data/build/output_file.h"
#include "trainer/data/build/progress_printer.h"
#include "trainer/data/build/synthetic.h"
#include "trainer/data/text/records.h"

namespace concord {
namespace {

void run_build(const BuildArguments& arguments, bool json) {
  check_outside_live_runs("--output", arguments.output);
  ProgressPrinter printer("data build");
  const BuildProgress progress = build_data(arguments, [&](const BuildProgress& now) {
    printer.show([&](double seconds) { return progress_line(now, seconds); });
  });
  printer.end_line();
  if (json) {
    const nlohmann::ordered_json document = {{"output", arguments.output},  {"documents", progress.documents},
                                             {"tokens", progress.tokens},   {"bytes", progress.bytes},
                                             {"shards", progress.shards},   {"shards_kept", progress.shards_kept},
                                             {"seconds", printer.seconds()}};
    return static_cast<void>(std::printf("%s\n", document.dump().c_str()));
  }
  const std::string kept =
      progress.shards_kept > 0 ? fmt::format(" ({} shards of an earlier build were kept)", progress.shards_kept) : "";
  std::printf("%s: %lld documents, %lld tokens in %.1f s%s\n", arguments.output.c_str(),
              static_cast<long long>(progress.documents), static_cast<long long>(progress.tokens), printer.seconds(),
              kept.c_str());
}

void add_build(CLI::App* data) {
  struct Given {
    BuildArguments arguments;
    TrainingArguments settings;
    bool json = false;
  };
  const auto given = std::make_shared<Given>();
  BuildArguments& arguments = given->arguments;
  CLI::App* build = data->add_subcommand("build", "convert text or JSONL to a Megatron .bin/.idx pair");
  build
      ->add_option("--input", arguments.inputs,
                   ".txt (documents separated by empty lines), .jsonl (one document per line), .parquet, .arrow, "
                   ".json, compressed "
                   ".jsonl, or folders or patterns of such files; several are read in order")
      ->required();
  build->add_option("--output", arguments.output, "PREFIX of the .bin and .idx files; with --sft a .jsonl file")
      ->required();
  add_setting(build,
              {.name = "tokenizer",
               .help = "tokenizer of the model: its folder or an HF tokenizer.json (needs Python with tokenizers); or "
                       "byte, for one token per byte"},
              &given->settings)
      ->required();
  build
      ->add_option("--append_eod", arguments.append_eod,
                   "append the tokenizer's end-of-document token to each document")
      ->capture_default_str();
  build->add_flag("--sft", arguments.sft,
                  "convert conversations (\"messages\") to samples with loss on the assistant's tokens only");
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
  build->footer("An interrupted build resumes when the same command is run again; the result is identical.");
  build->callback([given] {
    given->arguments.tokenizer = given->settings.data.tokenizer;
    given->arguments.chat_template = given->settings.data.chat_template;
    run_build(given->arguments, given->json);
  });
}

void add_convert(CLI::App* data) {
  const auto input = std::make_shared<std::string>(), output = std::make_shared<std::string>();
  const auto overwrite = std::make_shared<bool>(false);
  CLI::App* convert = data->add_subcommand("convert", "write the records of a table as .jsonl, which build takes");
  convert->add_option("--input", *input, ".parquet, .arrow, .json (a list), .jsonl.gz, .jsonl.zst or .jsonl.xz file")
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
