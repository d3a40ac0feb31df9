// `concord train` as seen by a user: its files, its exit, its errors.
#include "tests/processes/train_program.h"

#include <gmock/gmock.h>

#include <csignal>

namespace concord::testing_processes {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

TEST_F(Train, LeavesWhatAPersonAndAScriptLookFor) {
  TrainProgram program(train_args({"--nproc", "2", "--eval_data", write_jsonl(path("eval.jsonl"), 7), "--eval_strategy",
                                   "steps", "--eval_steps", "0.5", "--save_steps", "2", "--save_total_limit", "1"}));
  ASSERT_EQ(program.exit_code(), 0) << program.err();
  const auto steps = read_steps(path("out"));
  ASSERT_EQ(steps.size(), 4u);
  for (const char* key : {"step", "loss", "learning_rate", "grad_norm", "tokens", "tokens_per_second"}) {
    EXPECT_TRUE(steps.back().contains(key)) << key;
  }
  EXPECT_LT(steps.back()["loss"].get<double>(), steps.front()["loss"].get<double>());
  for (const char* name : {"trainer_state.json", "report.html", "runs", "training_args.yaml", "model/config.json",
                           "model/model.safetensors", "checkpoint-4/model.safetensors"}) {
    EXPECT_TRUE(fs::exists(path("out") + "/" + name)) << name;
  }
  EXPECT_FALSE(fs::exists(path("out/checkpoint-2")));
  const auto evaluations = read_lines(path("out/eval_metrics.jsonl"));
  ASSERT_EQ(evaluations.size(), 2u);
  EXPECT_LT(evaluations[1]["eval_loss"].get<double>(), evaluations[0]["eval_loss"].get<double>());
}

TEST_F(Train, WhatItPrintedAsItsArgumentsTrainsTheSame) {
  TrainProgram first(train_args({}));
  ASSERT_EQ(first.exit_code(), 0) << first.err();
  TrainProgram second({"--config", path("out/training_args.yaml"), "--output_dir", path("again")});
  ASSERT_EQ(second.exit_code(), 0) << second.err();
  const auto a = read_steps(path("out")), b = read_steps(path("again"));
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i]["loss"], b[i]["loss"]) << i;
}

TEST_F(Train, SigtermEndsItAfterTheStepOnAllRanksWithTheModelSaved) {
  TrainProgram program(train_args({"--nproc", "2", "--max_steps", "1000000", "--save_steps", "900000"}));
  ASSERT_TRUE(poll_until([&] { return fs::exists(path("out/metrics.jsonl")) && read_steps(path("out")).size() > 2; }));
  program.process().signal(SIGTERM);
  program.exit_code();
  EXPECT_TRUE(fs::exists(path("out/model/model.safetensors"))) << program.err() << program.out();
  const auto state = nlohmann::json::parse(std::ifstream(path("out/trainer_state.json")));
  EXPECT_GT(state["global_step"].get<int>(), 2);
  EXPECT_THAT(program.out() + program.err(), HasSubstr("SIGTERM"));
}

TEST_F(Train, PrintConfigIsAConfiguration) {
  TrainProgram program(train_args({"--print_config", "--bf16"}));
  ASSERT_EQ(program.exit_code(), 0) << program.err();
  std::ofstream(path("printed.yaml")) << program.out();
  TrainProgram again({"--config", path("printed.yaml"), "--print_config"});
  ASSERT_EQ(again.exit_code(), 0) << again.err();
  EXPECT_EQ(again.out(), program.out());
  EXPECT_THAT(program.out(), HasSubstr("bf16: true"));
}

TEST_F(Train, ThePlatformIsAnArgumentWhichTheRanksHaveToo) {
  for (const char* nproc : {"1", "2"}) {
    TrainProgram program(train_args({"--nproc", nproc, "--platform", "cpu", "--overwrite_output_dir"}),
                         {.environment = {"CONCORD_PLATFORM=nowhere"}});
    EXPECT_EQ(program.exit_code(), 0) << program.err();
    EXPECT_EQ(read_steps(path("out")).size(), 4u) << nproc;
    TrainProgram none(train_args({"--nproc", nproc, "--platform", "nowhere", "--output_dir", path("none")}));
    EXPECT_EQ(none.exit_code(), 1);
    EXPECT_THAT(none.out() + none.err(), HasSubstr("no platform 'nowhere'; tried:"));
  }
}

TEST_F(Train, HelpListsTheArguments) {
  TrainProgram program({"--help"});
  EXPECT_EQ(program.exit_code(), 0);
  EXPECT_THAT(program.out(), AllOf(HasSubstr("--learning_rate"), HasSubstr("--nproc")));
}

// A cache like huggingface_hub's: links to files that are named after their contents.
TEST_F(Train, AModelIsFoundByItsNameInHfsCache) {
  const fs::path model = path("hub/models--Owner--Tiny"), snapshot = model / "snapshots/0123456789abcdef";
  for (const fs::path& folder : {model / "blobs", model / "refs", snapshot}) fs::create_directories(folder);
  std::ofstream(model / "refs/main") << snapshot.filename().string();
  for (const fs::directory_entry& file : fs::directory_iterator(kTinyModel)) {
    const std::string name = file.path().filename().string();
    fs::copy(file.path(), model / "blobs" / ("blob-" + name));
    fs::create_symlink("../../blobs/blob-" + name, snapshot / name);
  }
  const ProcessSettings settings{.environment = {"HF_HUB_CACHE=" + path("hub")}};
  const std::vector<std::string> layout = {"--nproc", "2", "--tensor_model_parallel_size", "2"};
  std::vector<std::string> here = layout, there = layout;
  here.insert(here.end(), {"--output_dir", path("folder")});
  there.insert(there.end(), {"--model", "Owner/Tiny"});
  TrainProgram folder(train_args(here));
  EXPECT_EQ(folder.exit_code(), 0) << folder.err();
  TrainProgram named(train_args(there), settings);
  EXPECT_EQ(named.exit_code(), 0) << named.err();
  const std::string said = named.out() + named.err();
  const std::string note = "model Owner/Tiny is in HF's cache: " + snapshot.string();
  EXPECT_THAT(said, HasSubstr(note));
  EXPECT_EQ(said.find(note), said.rfind(note)) << "once, and not once per rank";
  const auto wanted = read_steps(path("folder")), found = read_steps(path("out"));
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i]["loss"], wanted[i]["loss"]) << i;
  }
  fs::remove_all(path("out"));
  const std::string none = refusal({"--model", "Owner/None", "--nproc", "2", "--tokenizer", "Owner/Words"});
  EXPECT_THAT(none, AllOf(HasSubstr("hf download Owner/None"), HasSubstr("hf download Owner/Words")));
  TrainProgram printed(train_args({"--model", "Owner/None", "--print_config"}));
  EXPECT_EQ(printed.exit_code(), 0) << "other people's files need not be complete here: " << printed.err();
}

TEST_F(Train, BadArgumentsAreSaidOnceAndAllTogether) {
  const std::string said = refusal({"--nproc", "2", "--fp16", "--bf16", "--tensor_model_parallel_size", "4"});
  EXPECT_THAT(said, AllOf(HasSubstr("fp16 and bf16"), HasSubstr("4")));
  EXPECT_THAT(said, Not(HasSubstr("rank")));
}

TEST_F(Train, BadDataIsSaidBeforeAnyProcessIsStarted) {
  for (const std::string nproc : {"1", "2"}) {
    EXPECT_THAT(refusal({"--nproc", nproc, "--train_data", path("nowhere.jsonl")}), HasSubstr("nowhere.jsonl"));
    std::ofstream(path("empty.jsonl"));
    EXPECT_THAT(refusal({"--nproc", nproc, "--train_data", path("empty.jsonl")}), HasSubstr("empty.jsonl"));
    write_jsonl(path("large.jsonl"), 8, 100000);
    EXPECT_THAT(refusal({"--nproc", nproc, "--train_data", path("large.jsonl")}), HasSubstr("large.jsonl"));
    std::ofstream(path("bad.jsonl")) << "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1,\n";
    EXPECT_THAT(refusal({"--nproc", nproc, "--train_data", path("bad.jsonl")}), HasSubstr("2"));
    write_jsonl(path("few.jsonl"), 1);
    EXPECT_THAT(refusal({"--nproc", nproc, "--train_data", path("few.jsonl")}), HasSubstr("fewer than"));
  }
}

TEST_F(Train, ATruncatedMegatronFileIsRefused) {
  fs::copy(kGolden + "/data/tokens.idx", path("cut.idx"));
  fs::copy(kGolden + "/data/tokens.bin", path("cut.bin"));
  fs::resize_file(path("cut.bin"), 100);
  EXPECT_THAT(refusal({"--train_data", path("cut"), "--seq_length", "16"}), HasSubstr("cut.bin"));
  std::ofstream(path("cut.idx")) << "not an index";
  EXPECT_THAT(refusal({"--train_data", path("cut"), "--seq_length", "16"}), HasSubstr("cut.idx"));
}

TEST_F(Train, ASequenceLongerThanTheModelAllowsIsRefused) {
  EXPECT_THAT(refusal({"--seq_length", "1000000"}), HasSubstr("max_position_embeddings"));
}

TEST_F(Train, AModelThatIsNotThereIsRefused) {
  EXPECT_THAT(refusal({"--model", path("nowhere")}), HasSubstr("nowhere"));
}

TEST_F(Train, AnOutputFolderOfAnotherRunIsKept) {
  fs::create_directories(path("out"));
  std::ofstream(path("out/trainer_state.json")) << "{}";
  std::ofstream(path("out/.concord-run.json")) << "{}";  // left by every run
  TrainProgram refused(train_args({}));
  EXPECT_EQ(refused.exit_code(), 2);
  EXPECT_THAT(refused.err(), AllOf(HasSubstr("contains another run"), HasSubstr("--overwrite_output_dir")));
  TrainProgram allowed(train_args({"--overwrite_output_dir"}));
  EXPECT_EQ(allowed.exit_code(), 0) << allowed.err();
  EXPECT_EQ(read_steps(path("out")).size(), 4u);
}

TEST_F(Train, AModelWhoseFilesCannotBeSavedWithItIsRefused) {
  std::filesystem::copy(kTinyModel, path("odd"));
  std::filesystem::remove(path("odd/generation_config.json"));
  ASSERT_EQ(mkfifo(path("odd/generation_config.json").c_str(), 0600), 0);
  EXPECT_THAT(refusal({"--model", path("odd")}), HasSubstr("generation_config.json: is not a regular file but a pipe"));
}

TEST_F(Train, AnOutputFolderThatIsAFileIsRefused) {
  std::ofstream(path("file")) << "x";
  EXPECT_THAT(refusal({"--output_dir", path("file")}), HasSubstr("is a file"));
  EXPECT_THAT(refusal({"--output_dir", path("file") + "/below"}), HasSubstr("is a file"));
}

TEST_F(Train, NprocInsideAJobIsRefused) {
  TrainProgram program(train_args({"--nproc", "2"}),
                       {.environment = {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2",
                                        "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29555"}});
  EXPECT_EQ(program.exit_code(), 2);
  EXPECT_THAT(program.err(), HasSubstr("torchrun"));
}

TEST_F(Train, TheVariablesOfALauncherMakeTheJob) {
  const std::vector<std::string> launched = train_args({});
  std::vector<std::string> command = {"train"};
  command.insert(command.end(), launched.begin(), launched.end());
  Launch job({"--nproc", "2"}, command);
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_EQ(read_steps(path("out")).size(), 4u);
}

TEST_F(Train, WithoutArgumentsItMakesItsOwnDataAndNamesTheFloor) {
  TrainProgram program({"--output_dir", path("first"), "--max_steps", "6", "--logging_steps", "2"});
  ASSERT_EQ(program.exit_code(), 0) << program.err();
  EXPECT_THAT(program.err(), HasSubstr("floor"));
  const auto steps = read_steps(path("first"));
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_LT(steps.back()["loss"].get<double>(), steps.front()["loss"].get<double>());
}

TEST_F(Train, KnowsTheShareOfThePeakThatItUses) {
  TrainProgram unknown(train_args({"--max_steps", "2"}));
  ASSERT_EQ(unknown.exit_code(), 0) << unknown.err();
  EXPECT_FALSE(read_steps(path("out")).front().contains("mfu")) << "nobody knows the peak of these processors";
  TrainProgram known(train_args({"--nproc", "2", "--peak_flops", "1e9", "--output_dir", path("known")}));
  ASSERT_EQ(known.exit_code(), 0) << known.err();
  EXPECT_THAT(known.out(), HasSubstr("MFU"));
  const auto steps = read_steps(path("known"));
  const nlohmann::json &a = steps.at(1), &b = steps.at(2);
  const double tokens = b["tokens"].get<double>() - a["tokens"].get<double>();
  // The rest of the formula depends only on the model: MFU * seconds / tokens is the same in every step.
  const double per_token = b["mfu"].get<double>() * b["seconds"].get<double>() / tokens;
  EXPECT_GT(per_token * 2e9, 6.0 * 64 * 64) << "fewer than one small product";
  EXPECT_NEAR(steps.at(3)["mfu"].get<double>() * steps.at(3)["seconds"].get<double>() / tokens, per_token,
              1e-6 * per_token);
}

TEST_F(Train, ALossThatIsNoNumberIsNamedWithItsRankMicroBatchAndStep) {
  const std::vector<std::string> wild = {
      "--learning_rate", "1e30", "--max_grad_norm", "0", "--gradient_accumulation_steps", "2", "--nproc", "2"};
  TrainProgram program(train_args(wild));
  EXPECT_EQ(program.exit_code(), 1);
  EXPECT_THAT(program.err(), ::testing::ContainsRegex("rank [01]: the loss of micro-batch [01] of step 2 is "));
  EXPECT_THAT(program.err(), HasSubstr("set check_for_nan_in_loss_and_grad to false to skip such steps"));
}

TEST_F(Train, TakesTextAndPairs) {
  {
    std::ofstream pairs(path("pairs.jsonl")), text(path("text.txt"));
    for (int i = 0; i < 64; ++i) {
      pairs << R"({"prompt": "hi", "completion": "ho ho"})"
            << "\n";
      text << "The quick brown fox jumps over the lazy dog.\n";
    }
  }
  for (const std::string data : {"pairs.jsonl", "text.txt"}) {
    TrainProgram program(train_args({"--train_data", path(data), "--tokenizer", "byte", "--seq_length", "128",
                                     "--output_dir", path("of-" + data)}));
    ASSERT_EQ(program.exit_code(), 0) << program.err();
    const auto steps = read_steps(path("of-" + data));
    ASSERT_EQ(steps.size(), 4u);
    EXPECT_LT(steps.back()["loss"].get<double>(), steps.front()["loss"].get<double>()) << data;
  }
}

// With a layout that splits tokens, layers and batches; the saved model generates the same text by itself.
TEST_F(Train, SamplesOfPromptsAreWhatTheSavedModelSays) {
  std::ofstream(path("prompts.jsonl")) << "{\"input_ids\": [5, 6, 7]}\n{\"input_ids\": [9]}\n";
  TrainProgram program(train_args(
      {"--nproc", "8", "--tensor_model_parallel_size", "2", "--sequence_parallel", "--pipeline_model_parallel_size",
       "2", "--gradient_accumulation_steps", "2", "--eval_data", write_jsonl(path("eval.jsonl"), 7), "--eval_strategy",
       "steps", "--eval_steps", "2", "--sample_prompts", path("prompts.jsonl"), "--sample_max_new_tokens", "12"}));
  ASSERT_EQ(program.exit_code(), 0) << program.err();
  const auto samples = read_lines(path("out/samples.jsonl"));
  ASSERT_EQ(samples.size(), 4u);
  RunningProcess alone({LAUNCH_PROGRAM, "generate", "--model", path("out/model"), "--prompts", path("prompts.jsonl"),
                        "--max_new_tokens", "12", "--dtype", "float32", "--json"});
  ASSERT_EQ(alone.wait(), 0) << alone.err();
  const auto generated = nlohmann::json::parse(alone.out())["generated"];
  for (size_t i = 0; i < 2; ++i) {
    std::string ids;
    for (const auto& id : generated[i]["ids"]) ids += (ids.empty() ? "" : " ") + id.dump();
    EXPECT_EQ(samples[2 + i]["step"], 4);
    EXPECT_EQ(samples[2 + i]["text"], ids) << i;
  }
  EXPECT_THAT(program.out(), HasSubstr("sample: 5 6 7 -> "));
}

TEST_F(Train, NamesACorpusThatIsCutShortDuringTheRun) {
  for (const char* end : {".bin", ".idx"}) fs::copy_file(kGolden + "/data/tokens" + end, path("tokens") + end);
  TrainProgram program(train_args({"--train_data", path("tokens"), "--seq_length", "16", "--max_steps", "1000000",
                                   "--shuffle", "false", "--save_strategy", "no"}));
  ASSERT_TRUE(program.process().wait_for_text("step"));
  fs::resize_file(path("tokens.bin"), 0);
  EXPECT_EQ(program.exit_code(), 1);
  EXPECT_THAT(program.err(), HasSubstr("tokens.bin: is now shorter"));
}

TEST_F(Train, FailsWhereItsOutputFolderIsRemoved) {
  TrainProgram program(train_args({"--max_steps", "1000000", "--save_strategy", "no"}));
  ASSERT_TRUE(program.process().wait_for_text("step"));
  fs::remove_all(path("out"));
  EXPECT_EQ(program.exit_code(), 1);
  EXPECT_THAT(program.err(), HasSubstr("out/metrics.jsonl: was deleted"));
}

// Runs one of the example programs; returns its standard output.
std::string run_example(const std::vector<std::string>& command) {
  RunningProcess process(command);
  EXPECT_EQ(process.wait(), 0) << process.err();
  return process.out();
}

TEST_F(Train, TheExampleWithACallbackStopsAtItsGoalOnAllRanks) {
  std::vector<std::string> command = {LAUNCH_PROGRAM, "launch", "--nproc", "2", "--", CALLBACK, "100"};
  const std::vector<std::string> more = train_args({"--max_steps", "50"});
  command.insert(command.end(), more.begin(), more.end());
  EXPECT_THAT(run_example(command), HasSubstr("goal reached at step 1"));
  EXPECT_EQ(read_steps(path("out")).size(), 1u);
}

TEST_F(Train, TheExampleOfMegatronsEntryTrainsAModelOfItsOwn) {
  const auto train = [&](const std::string& out, int nproc, const std::vector<std::string>& more) {
    std::vector<std::string> command = {LAUNCH_PROGRAM, "launch", "--nproc", std::to_string(nproc), "--", PRETRAIN};
    for (const char* word : {"--learning_rate", "1e-2", "--logging_steps", "1", "--compute_accuracy", "--eval_strategy",
                             "steps", "--eval_steps", "10", "--per_device_eval_batch_size", "3"}) {
      command.emplace_back(word);
    }
    command.insert(command.end(), {"--model_config", kTinyModel + "/config.json", "--output_dir", path(out)});
    command.insert(command.end(), more.begin(), more.end());
    return run_example(command);
  };
  const std::string said = train("out", 4,
                                 {"--max_steps", "10", "--per_device_train_batch_size", "4", "--focal_gamma", "2",
                                  "--pipeline_model_parallel_size", "2", "--save_steps", "6"});
  EXPECT_THAT(said, AllOf(HasSubstr("pretrain: 4 ranks have met"), HasSubstr("pretrain: finished"),
                          HasSubstr("over 10 steps on 4 ranks")));
  const auto steps = read_steps(path("out"));
  ASSERT_EQ(steps.size(), 10u);
  EXPECT_LT(steps.back()["loss"].get<double>(), 0.9 * steps.front()["loss"].get<double>());
  // Its metrics over all samples, distributed to two ranks with padding, equal the metrics without gathering them.
  const auto evaluations = read_lines(path("out") + "/eval_metrics.jsonl");
  ASSERT_EQ(evaluations.size(), 1u);
  const nlohmann::json& evaluation = evaluations.back();
  const double accuracy = evaluation["eval_accuracy"];
  EXPECT_GT(accuracy, 0);
  EXPECT_NEAR(evaluation["eval_right_tokens"].get<double>(), accuracy, 1e-9);
  EXPECT_LE(evaluation["eval_right_samples"].get<double>(), accuracy);
  EXPECT_GT(evaluation["eval_later_token_loss"].get<double>(), 0);
  EXPECT_GT(evaluation["eval_first_token_loss"].get<double>(), 0);
  std::ifstream file(path("out/model/model.safetensors"));
  const std::string model(std::istreambuf_iterator<char>(file), {});
  for (const char* name : {"embedding.weight", "layers.3.in.weight", "output.weight"})
    EXPECT_THAT(model.substr(0, 4000), HasSubstr(name));
  // One process, starting in the middle, with the arguments that the first run has stored: the same losses.
  fs::remove_all(path("out/checkpoint-10"));
  fs::remove_all(path("out/model"));
  train("out", 1,
        {"--config", path("out/training_args.yaml"), "--per_device_train_batch_size", "8",
         "--pipeline_model_parallel_size", "1", "--prediction_loss_only", "--compute_accuracy", "false",
         "--resume_from_checkpoint", "true"});
  const auto again = read_steps(path("out"));
  ASSERT_EQ(again.size(), 10u);
  for (size_t i = 6; i < 10; ++i) {
    const double loss = steps[i]["loss"];
    EXPECT_NEAR(again[i]["loss"].get<double>(), loss, 1e-4 * loss) << i;
  }
  const nlohmann::json loss_only = read_lines(path("out") + "/eval_metrics.jsonl").back();
  EXPECT_FALSE(loss_only.contains("eval_right_tokens"));
  EXPECT_NEAR(loss_only["eval_loss"].get<double>(), evaluation["eval_loss"].get<double>(), 1e-4);
}

TEST_F(Train, TheExampleHearsOfItsEndAndRefusesWhatItCannot) {
  const auto fails = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command = {
        PRETRAIN, "--model_config", kTinyModel + "/config.json", "--output_dir", path("out"), "--max_steps", "2"};
    command.insert(command.end(), more.begin(), more.end());
    RunningProcess process(command);
    EXPECT_TRUE(poll_until([&] { return process.has_ended(); }));
    EXPECT_NE(process.wait(), 0);
    return process.out() + process.err();
  };
  EXPECT_THAT(fails({"--focal_gamma", "nan", "--rerun_mode", "disabled"}), HasSubstr("pretrain: aborted: "));
  EXPECT_THAT(fails({"--focal_gama", "1"}), HasSubstr("unknown argument 'focal_gama'"));
  EXPECT_THAT(fails({"--nproc", "2"}), HasSubstr("concord launch"));
}

}  // namespace
}  // namespace concord::testing_processes
