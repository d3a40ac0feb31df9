// Every argument that names a file or a folder, given an invalid one: a pipe without a writer, an endless device, a
// folder, a file with a trailing zero byte. The program reports the mistake and exits. Arguments that name an output
// are also given paths that must not be overwritten: an existing file, an input of the command, the folder of a running
// job. The arguments are read from the program itself: one that is not in the tables below fails the test.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "core/base/files/run_lock.h"
#include "tests/processes/ended_process.h"
#include "tests/temporary_folder.h"
#include "trainer/arguments/table.h"
#include "trainer/cli/program.h"

namespace concord::testing_processes {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kConfig = CONCORD_GOLDEN "/hf/qwen2-tiny/config.json";

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// An argument, and a command in which it is @. What stands at the path + |file| is read, or written where |good| is
// empty; |good| is what could stand there.
struct PathCase {
  std::string argument;
  std::vector<std::string> command;
  std::string file = {};
  std::string good = {};
  bool runs = true;             // with what is good the command ends by itself and with 0
  bool zero_is_fine = false;    // the format allows a trailing zero byte, or another program checks it
  bool device_is_fine = false;  // it is written to, and not replaced

  bool is_output() const { return good.empty() && argument != "checkpoint list output_dir"; }
  bool is_log() const { return argument == "launch --log_dir"; }  // text is appended to what exists
  bool can_overwrite() const {
    return is_output() && !is_log() && argument != "train --output_dir" && argument != "convert --to" &&
           argument != "merge --out";
  }
};

const std::vector<std::string> kTrain = {
    "train", "--nproc",     "2", "--model_config", "F/config.json", "--train_data", "F/text.txt", "--seq_length",
    "4",     "--max_steps", "1", "--output_dir",   "F/run"};

std::vector<std::string> train_with(const std::string& name) {
  std::vector<std::string> command = kTrain;
  if (name != "tokenizer") command.insert(command.end(), {"--tokenizer", "byte"});
  command.insert(command.end(), {"--" + name, "@"});
  return command;
}

std::vector<std::string> evaluating(std::vector<std::string> command) {
  command.insert(command.end(), {"--eval_data", "F/text.txt"});
  return command;
}

std::vector<std::string> learning_preferences(std::vector<std::string> command) {
  command.insert(command.end(), {"--stage", "dpo"});
  return command;
}

std::vector<std::string> train_on_model() {
  return {"train", "--nproc", "2", "--model", "@", "--train_data", "F/text.txt", "--output_dir", "F/run"};
}

std::vector<std::string> train_adapter() {
  return {"train", "--nproc",      "2",          "--model",      "F/model", "--finetuning_type",
          "lora",  "--train_data", "F/text.txt", "--output_dir", "F/run",   "--adapter_name_or_path",
          "@"};
}

std::vector<PathCase> path_cases() {
  const std::string config = content_of(kConfig), text = "one two\n\nthree\n";
  const std::string line = "{\"text\": \"one two three\"}\n", csv = "0F0,0B0\n";
  const std::string metrics = "{\"step\": 1, \"loss\": 2.5}\n";
  const std::string weights = content_of(CONCORD_GOLDEN "/hf/qwen2-tiny/model.safetensors");
  const std::string adapter = R"({"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]})";
  const std::string index = content_of(CONCORD_GOLDEN "/data/tokens.idx");
  const std::vector<std::string> build = {"data",  "build",       "--input",     "@",   "--output",
                                          "F/out", "--overwrite", "--tokenizer", "byte"};
  const std::vector<std::string> generate = {"generate", "--model", "F/model", "--prompt", "a"};
  const std::vector<std::string> plan = {"plan", "--world_size", "1", "--buckets"};
  const auto with = [](std::vector<std::string> command, const std::string& name) {
    command.insert(command.end(), {name, "@"});
    return command;
  };
  const std::vector<std::string> schedule = {"schedule", "--kind", "1f1b", "--pp", "2", "--microbatches", "2"};
  const std::vector<std::string> lr = {"lr", "--max_steps", "3"}, report = {"report", "F/run1"};
  return {
      {"train --config",
       {"train", "--config", "@", "--print_config", "--model", "m", "--train_data", "d"},
       "",
       "seed: 7\n"},
      {"train --model", train_on_model(), "/config.json", config, false},
      {"train --model_config", train_with("model_config"), "", config, false},
      {"train --adapter_name_or_path", train_adapter(), "/adapter_config.json", adapter, false},
      {"train --ref_model", learning_preferences(train_with("ref_model")), "/config.json", config, false},
      {"train --train_data", train_with("train_data"), ".txt", text, false},
      {"train --train_data", train_with("train_data"), ".jsonl", line, false},
      {"train --train_data", train_with("train_data"), ".safetensors", weights, false},
      {"train --train_data", train_with("train_data"), ".idx", index, false},
      {"train --eval_data", train_with("eval_data"), ".jsonl", line, false},
      {"train --dataset_dir",
       {"train", "--nproc", "2", "--model_config", "F/config.json", "--dataset", "a", "--dataset_dir", "@",
        "--output_dir", "F/run"},
       "/dataset_info.json",
       R"({"a": {"file_name": "none.jsonl"}})",
       false},
      {"train --test_data", train_with("test_data"), ".jsonl", line, false},
      {"train --tokenizer", train_with("tokenizer"), "", "{}", false, true},
      {"train --chat_template", train_with("chat_template"), ".jinja", "{{ messages }}", false, true},
      {"train --sample_prompts", evaluating(train_with("sample_prompts")), ".txt", text, false},
      {"train --output_dir", train_with("output_dir")},
      {"train --resume_from_checkpoint", train_with("resume_from_checkpoint"), "/metadata.json", "{}", false},
      {"train --pipeline_schedule", train_with("pipeline_schedule"), ".csv", csv, false},
      {"data build --input", build, ".txt", text},
      {"data build --input", build, ".jsonl", line},
      {"data build --output",
       {"data", "build", "--input", "F/text.txt", "--output", "@", "--overwrite", "--tokenizer", "byte"},
       ".bin"},
      {"data build --tokenizer", with({"data", "build", "--input", "F/text.txt", "--output", "F/o"}, "--tokenizer"), "",
       "{}", false, true},
      {"data build --output_prefix",
       {"data", "build", "--input", "F/text.txt", "--output_prefix", "@", "--overwrite", "--tokenizer", "byte"},
       "_text_document.bin"},
      {"data build --tokenizer_model",
       with({"data", "build", "--input", "F/text.txt", "--output_prefix", "F/o"}, "--tokenizer_model"), "", "{}", false,
       true},
      {"data synth --output", {"data", "synth", "--tokens", "1000", "--output", "@"}, ".idx"},
      {"checkpoint list output_dir", {"checkpoint", "list", "@"}},
      {"checkpoint describe checkpoint", {"checkpoint", "describe", "@"}, "/metadata.json", "{}", false},
      {"checkpoint verify checkpoint", {"checkpoint", "verify", "@"}, "/manifest.json", "{}", false, true},
      {"checkpoint diff A", {"checkpoint", "diff", "@", "F"}, "/model.safetensors", weights, false},
      {"checkpoint diff B", {"checkpoint", "diff", "@", "@"}, "/metadata.json", "{}", false},
      {"convert --from", {"convert", "--from", "@", "--to", "F/converted"}, "/model.safetensors", weights, false},
      {"convert --to", {"convert", "--from", "F/model", "--to", "@"}, "/model.safetensors"},
      {"diff A", {"diff", "@", "F/w.safetensors"}, "", weights},
      {"diff B", {"diff", "F/w.safetensors", "@"}, "/model.safetensors.index.json", "{\"weight_map\": {}}", false},
      {"merge --model",
       {"merge", "--adapter", "F/adapter", "--out", "F/merged", "--model", "@"},
       "/model.safetensors",
       weights,
       false},
      {"merge --adapter",
       {"merge", "--model", "F/model", "--out", "F/merged", "--adapter", "@"},
       "/adapter_model.safetensors",
       weights,
       false},
      {"merge --out", {"merge", "--model", "F/model", "--adapter", "F/adapter", "--out", "@"}, "/model.safetensors"},
      {"lr --csv", with(lr, "--csv")},
      {"lr --svg", with(lr, "--svg")},
      {"plan --model", with(plan, "--model"), "/config.json", config},
      {"plan --parameters", with(plan, "--parameters"), "", "[{\"name\": \"w\", \"elements\": 4}]"},
      {"schedule --csv", {"schedule", "--csv", "@"}, "", csv},
      {"schedule --kind", {"schedule", "--kind", "@"}, ".csv", csv},
      {"schedule --save_csv", with(schedule, "--save_csv")},
      {"schedule --svg", with(schedule, "--svg")},
      {"report runs", {"report", "@"}, "/metrics.jsonl", metrics},
      {"report runs", {"report", "@"}, "/eval_metrics.jsonl", "{\"step\": 1, \"eval_loss\": 2.5}\n", false},
      {"report --svg", with(report, "--svg")},
      {"report --html", with(report, "--html")},
      {"launch --log_dir", {"launch", "--nproc", "1", "--log_dir", "@", "--", "/bin/true"}},
      {"launch --log_dir",
       {"launch", "--nproc", "1", "--log_dir", "@", "--", "/bin/true"},
       "/rank-0.log",
       "",
       true,
       false,
       true},
      {"data convert --input", {"data", "convert", "--input", "@", "--output", "F/o.jsonl"}, ".json", "[]"},
      {"data convert --output", {"data", "convert", "--input", "F/list.json", "--output", "@"}, ".jsonl"},
      {"data build --chat_template",
       {"data", "build", "--input", "F/text.txt", "--output", "F/out", "--tokenizer", "byte", "--chat_template", "@"},
       ".jinja",
       "{{ messages }}",
       false,
       true},
      {"generate --model", {"generate", "--model", "@", "--prompt", "a"}, "/config.json", config, false},
      {"generate --prompts", {"generate", "--model", "F/model", "--prompts", "@"}, ".txt", text, false},
      {"generate --adapter", with(generate, "--adapter"), "/adapter_config.json", adapter, false},
      {"generate --tokenizer", with(generate, "--tokenizer"), "", "{}", false, true},
      {"generate --chat_template", with(generate, "--chat_template"), "", "{{ messages }}", false, true},
      {"probe --model",
       {"probe", "--model", "@", "--batch", "F/w.safetensors", "--out", "F/out"},
       "/config.json",
       config,
       false},
      {"probe --model_config",
       {"probe", "--model_config", "@", "--batch", "F/w.safetensors", "--out", "F/out"},
       "",
       config,
       false},
      {"probe --adapter_name_or_path",
       {"probe", "--model", "F/model", "--adapter_name_or_path", "@", "--batch", "F/w.safetensors", "--out", "F/out"},
       "/adapter_config.json",
       adapter,
       false},
      {"probe --batch",
       {"probe", "--model_config", "F/config.json", "--batch", "@", "--out", "F/out"},
       "",
       weights,
       false,
       true},
      {"probe --out", {"probe", "--model_config", "F/config.json", "--batch", "F/w.safetensors", "--out", "@"}},
      {"operators --out", {"operators", "--filter", "no such operator", "--out", "@"}},
  };
}

// Arguments whose value is text and no path, that of a plugin, which the loader checks (platform/loader/probe_test), or
// of images or videos, which the image process opens (tests/parity/multimodal).
const std::set<std::string> kTexts = {"data build --json_keys",
                                      "data build --media_dir",
                                      "train --media_dir",
                                      "generate --image",
                                      "generate --video",
                                      "data build --tokenizer_type",
                                      "doctor --platform",
                                      "generate --platform",
                                      "operators --filter",
                                      "operators --platform",
                                      "probe --platform",
                                      "train --platform",
                                      "generate --prompt",
                                      "generate --dtype",
                                      "generate --pipeline_model_parallel_layout",
                                      "train --init_lora_weights",
                                      "train --lr_scheduler_type",
                                      "train --order",
                                      "train --heterogeneous_split",
                                      "train --pipeline_model_parallel_layout",
                                      "train --run_name",
                                      "train --dataset",
                                      "train --dataset_text_field",
                                      "train --eval_dataset",
                                      "train --data_cache_path",
                                      "train --prometheus_host",
                                      "train --metric_for_best_model",
                                      "convert --dtype",
                                      "convert --max_shard_size",
                                      "merge --dtype",
                                      "merge --max_shard_size",
                                      "plan --order",
                                      "plan --platform",
                                      "plan --dtype",
                                      "plan --exp_avg_dtype",
                                      "plan --exp_avg_sq_dtype",
                                      "plan --main_grads_dtype",
                                      "plan --main_params_dtype",
                                      "plan --optimizer",
                                      "schedule --placement",
                                      "report --names",
                                      "report --metric",
                                      "report --over",
                                      "report --title",
                                      "launch --master_addr",
                                      "launch --rdzv_backend",
                                      "launch --rdzv_endpoint",
                                      "launch --rdzv_id",
                                      "launch --rdzv_conf",
                                      "launch --local_addr",
                                      "launch command",
                                      "chaos --kinds",
                                      "chaos command",
                                      "probe --dtype",
                                      "probe --pipeline_model_parallel_layout",
                                      "probe --cp_comm_type",
                                      "probe --recompute_granularity",
                                      "probe --recompute_method",
                                      "probe --recompute_modules",
                                      "probe --moe_router_load_balancing_type",
                                      "probe --moe_token_drop_policy"};

void collect_texts(const CLI::App& app, const std::string& front, std::set<std::string>* names) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_type_name() != "TEXT" && option->get_type_size_max() > 0 &&
        option->get_type_name().find("TEXT") == std::string::npos)
      continue;
    if (option->get_type_size_max() == 0) continue;  // a flag
    const bool positional = option->get_lnames().empty();
    names->insert(front + (positional ? option->get_name() : "--" + option->get_lnames().front()));
  }
  for (const CLI::App* inner : app.get_subcommands([](const CLI::App*) { return true; }))
    collect_texts(*inner, front + inner->get_name() + " ", names);
}

// All arguments of the program that take text.
std::set<std::string> text_arguments() {
  int exit_code = 0;
  std::set<std::string> names;
  collect_texts(*make_program(&exit_code), "", &names);
  for (const ArgumentGroup& group : argument_groups()) {
    for (const Argument& argument : group.arguments) {
      if (std::holds_alternative<ArgumentField<std::string>>(argument.member))
        names.insert("train --" + std::string(argument.name));
    }
  }
  names.insert("train --config");
  return names;
}

TEST(PathArguments, EveryArgumentThatTakesTextIsAPathOrSaidToBeNone) {
  std::set<std::string> known = kTexts;
  for (const PathCase& each : path_cases()) known.insert(each.argument);
  std::vector<std::string> wrong;  // in one of them only
  const std::set<std::string> there = text_arguments();
  std::set_symmetric_difference(there.begin(), there.end(), known.begin(), known.end(), std::back_inserter(wrong));
  EXPECT_THAT(wrong, ::testing::IsEmpty());
}

class PathArgumentsTest : public ::testing::TestWithParam<PathCase> {
 protected:
  PathArgumentsTest() {
    fs::copy_file(kConfig, folder_ / "config.json");
    fs::copy_file(CONCORD_GOLDEN "/hf/qwen2-tiny/model.safetensors", folder_ / "w.safetensors");
    std::ofstream(folder_ / "list.json") << "[]";
    std::ofstream(folder_ / "text.txt") << "one two\n\nthree\n";
    fs::create_directory(folder_ / "run1");
    std::ofstream(folder_ / "run1/metrics.jsonl") << "{\"step\": 1, \"loss\": 2.5}\n";
    fs::create_directory(folder_ / "empty");
    fs::create_directory(folder_ / "model");
    fs::copy_file(folder_ / "w.safetensors", folder_ / "model/model.safetensors");
    fs::copy_file(kConfig, folder_ / "model/config.json");
    fs::copy(CONCORD_GOLDEN "/lora", folder_ / "adapter");
  }

  // The path to give; what stands there is made by |make|, which gets the path of the file itself.
  template <class Make>
  std::string place(const std::string& name, Make make) {
    const std::string path = folder_ / name, file = path + GetParam().file;
    fs::create_directories(fs::path(file).parent_path());
    if (GetParam().argument == "report runs" && !file.ends_with("/metrics.jsonl"))
      fs::copy_file(folder_ / "run1/metrics.jsonl", path + "/metrics.jsonl");
    if (GetParam().argument == "merge --adapter")
      fs::copy_file(CONCORD_GOLDEN "/lora/adapter_config.json", path + "/adapter_config.json");
    if (file.ends_with(".idx")) fs::copy_file(CONCORD_GOLDEN "/data/tokens.bin", path + ".bin");
    make(file);
    return GetParam().file.starts_with("/") || GetParam().file == ".idx" || GetParam().file.ends_with(".bin") ? path
                                                                                                              : file;
  }

  std::unique_ptr<RunningProcess> start(const std::string& path, bool overwrites = false) const {
    std::vector<std::string> command = {CONCORD_PROGRAM};
    for (const std::string& word : GetParam().command) {
      if (word == "--overwrite" && GetParam().is_output()) continue;
      command.push_back(word == "@"              ? path
                        : word == "F/run"        ? path + ".run"
                        : word.starts_with("F/") ? folder_ / word.substr(2)
                                                 : word);
    }
    if (overwrites && GetParam().can_overwrite()) command.emplace_back("--overwrite");
    return std::make_unique<RunningProcess>(command);
  }

  // The files that the command reads.
  std::vector<std::string> inputs() const {
    std::vector<std::string> files;
    for (const std::string& word : GetParam().command) {
      const std::string path = word.starts_with("F/") ? folder_ / word.substr(2) : "";
      if (fs::is_regular_file(path)) files.push_back(path);
      if (!fs::is_directory(path)) continue;
      for (const fs::directory_entry& entry : fs::directory_iterator(path)) files.push_back(entry.path().string());
    }
    return files;
  }

  void expect_exit_2(RunningProcess* process, const std::string& text) const {
    const int status = process->wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2) << status << ": " << process->err();
    EXPECT_THAT(process->err(), HasSubstr(text));
  }

  void expect_refused(RunningProcess* process, const std::string& name) const {
    const int status = process->wait();
    ASSERT_TRUE(WIFEXITED(status)) << name << ": " << process->err();
    EXPECT_THAT(WEXITSTATUS(status), ::testing::AnyOf(1, 2)) << name << ": " << process->err();
    EXPECT_THAT(process->err(), HasSubstr(name));
  }

  tests::TemporaryFolder folder_;
};

TEST_P(PathArgumentsTest, IsRefusedWhereItIsNoRegularFile) {
  const auto pipe = [](const std::string& file) { ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0); };
  const auto device = [](const std::string& file) { fs::create_symlink("/dev/zero", file); };
  const auto inner_folder = [](const std::string& file) { fs::create_directory(file); };
  std::vector<std::pair<std::string, std::unique_ptr<RunningProcess>>> started;
  started.emplace_back("a_pipe", start(place("a_pipe", pipe)));
  if (!GetParam().device_is_fine) started.emplace_back("a_device", start(place("a_device", device)));
  // A folder is what some arguments name.
  const bool takes_folder = GetParam().file.empty() && (GetParam().argument.ends_with("_dir"));
  if (!takes_folder) started.emplace_back("a_folder", start(place("a_folder", inner_folder)));
  if (!GetParam().good.empty() && !GetParam().zero_is_fine) {
    started.emplace_back("a_zero", start(place("a_zero", [](const std::string& file) {
                           std::ofstream(file, std::ios::binary) << GetParam().good << std::string("\0more\n", 6);
                         })));
  }
  for (const auto& [name, process] : started) expect_refused(process.get(), name);
}

TEST_P(PathArgumentsTest, IsTakenThroughALinkToAFile) {
  if (!GetParam().runs || GetParam().good.empty()) return;
  std::ofstream(folder_ / "good", std::ios::binary) << GetParam().good;
  const std::string path =
      place("a_link", [&](const std::string& file) { fs::create_symlink(folder_ / "good", file); });
  const std::unique_ptr<RunningProcess> process = start(path);
  EXPECT_EQ(process->wait(), 0) << process->err();
}

class OutputArgumentsTest : public PathArgumentsTest {};

TEST_P(OutputArgumentsTest, IsNotReplacedUnlessAsked) {
  const std::string path = place("kept", [](const std::string& file) { std::ofstream(file) << "keep"; });
  const std::unique_ptr<RunningProcess> process = start(path);
  const std::string file = fs::is_regular_file(path) ? path : path + GetParam().file;
  if (GetParam().is_log() && file != path) {
    EXPECT_EQ(process->wait(), 0) << process->err();
  } else {
    expect_exit_2(process.get(), GetParam().can_overwrite() ? "already exists" : "kept");
  }
  EXPECT_EQ(content_of(file), "keep");
}

TEST_P(OutputArgumentsTest, IsNeverAnInput) {
  if (!GetParam().can_overwrite()) return;
  int number = 0;
  for (const std::string& input : inputs()) {
    const std::string before = content_of(input);
    const auto hard = [&](const std::string& file) { fs::create_hard_link(input, file); };
    const auto soft = [&](const std::string& file) { fs::create_symlink(input, file); };
    const std::string paths[] = {place("hard" + std::to_string(number), hard),
                                 place("soft" + std::to_string(number++), soft)};
    for (const std::string& path : paths) expect_exit_2(start(path, true).get(), "would overwrite");
    EXPECT_EQ(content_of(input), before);
  }
}

TEST_P(OutputArgumentsTest, IsRefusedInTheFolderOfARunningJob) {
  const RunLock lock(folder_ / "live", "a job");
  const bool is_run = GetParam().argument == "train --output_dir";
  const std::string path =
      is_run ? folder_ / "live" : folder_ / (GetParam().file == ".jsonl" ? "live/o.jsonl" : "live/o");
  expect_exit_2(start(path, true).get(), "in use by process " + std::to_string(::getpid()));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "live"), fs::directory_iterator()), 1) << "the lock";
}

TEST(OutputArguments, OfACommandNameDifferentFiles) {
  const tests::TemporaryFolder folder;
  std::ofstream(folder / "metrics.jsonl") << "{\"step\": 1, \"loss\": 2.5}\n";
  const std::string file = folder / "same";
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"lr", "--max_steps", "3", "--csv", file},
           {"schedule", "--kind", "1f1b", "--pp", "2", "--microbatches", "2", "--save_csv", file},
           {"report", folder.path(), "--html", file}}) {
    const EndedProcess ended = run_to_end(with_front({"--svg", file}, with_front(words, {CONCORD_PROGRAM})));
    EXPECT_EQ(ended.exit_code, 2) << words.front();
    EXPECT_THAT(ended.err, HasSubstr("and --svg both name")) << words.front();
    EXPECT_FALSE(fs::exists(file)) << words.front();
  }
}

std::string name_of(const ::testing::TestParamInfo<PathCase>& info) {
  std::string name = std::to_string(info.index) + "_" + info.param.argument;
  for (char& letter : name) {
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  }
  return name;
}

std::vector<PathCase> output_cases() {
  std::vector<PathCase> cases = path_cases();
  std::erase_if(cases, [](const PathCase& each) { return !each.is_output(); });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, PathArgumentsTest, ::testing::ValuesIn(path_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(All, OutputArgumentsTest, ::testing::ValuesIn(output_cases()), name_of);

}  // namespace
}  // namespace concord::testing_processes
