// What a resumed run may change, and the flags that allow more, through the program.
#include <gmock/gmock.h>

#include "tests/processes/training/resume_runs.h"

namespace concord::testing_processes {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class ResumeSettings : public TrainResume {
 protected:
  // Rows [first, last) of those that write_jsonl makes, in a file.
  std::string write_rows(const std::string& name, const std::vector<std::pair<int, int>>& ranges) {
    write_jsonl(path("rows.jsonl"), 64);
    std::ifstream rows(path("rows.jsonl"));
    std::vector<std::string> lines;
    for (std::string line; std::getline(rows, line);) lines.push_back(line);
    std::ofstream file(path(name));
    for (const auto& [first, last] : ranges) {
      for (int i = first; i < last; ++i) file << lines[static_cast<size_t>(i)] << "\n";
    }
    return path(name);
  }
  Args resume(const std::string& folder) { return {"--resume_from_checkpoint", path(folder)}; }
  std::string refused(const Args& more) {
    TrainProgram program(run_args("refused", more));
    EXPECT_EQ(program.exit_code(), 2) << program.err();
    EXPECT_FALSE(fs::exists(path("refused")));
    return program.err();
  }
  nlohmann::json metadata(const std::string& checkpoint) {
    return nlohmann::json::parse(bytes_of(path(checkpoint) + "/metadata.json"));
  }

  const Args one_ = ranks(1, 4);
  const Args constant_ = {"--lr_scheduler_type", "constant"};
};

std::string text_of(int letters) {
  std::string text;
  for (int i = 0; i < letters; ++i) text += static_cast<char>('a' + i * i % 23);
  return text;
}

TEST_F(ResumeSettings, AFinishedRunIsMadeLonger) {
  std::ofstream(path("text.txt")) << text_of(6000);  // 187 samples: less than an epoch in both
  for (const Args& data : {Args{}, Args{"--train_data", path("text.txt"), "--seq_length", "32"},
                           Args{"--sequence_packing", "--seq_length", "48"}}) {
    const Args kind = one_ + constant_ + data + Args{"--tokenizer", "byte", "--logging_steps", "2"};
    for (const char* out : {"whole", "short"}) fs::remove_all(path(out));
    run("whole", kind);
    run("short", kind + Args{"--max_steps", "8"});
    run("short", kind + Args{"--resume_from_checkpoint", "true"});
    expect_same_tensors("whole/checkpoint-12", "short/checkpoint-12");
    EXPECT_TRUE(bytes_of(path("whole/model/model.safetensors")) == bytes_of(path("short/model/model.safetensors")));
    const auto first = read_steps(path("whole")), second = read_steps(path("short"));
    ASSERT_EQ(first.size(), second.size());
    for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i]["loss"], second[i]["loss"]) << i;
  }
}

TEST_F(ResumeSettings, ALongerScheduleNeedsItsFlagAndThenFollowsTheLongCurve) {
  run("long", one_ + Args{"--logging_steps", "1"});
  run("short", one_ + Args{"--max_steps", "5"});
  const Args kind = one_ + resume("short/checkpoint-5") + Args{"--logging_steps", "1"};
  EXPECT_THAT(refused(kind),
              AllOf(HasSubstr("end of the curve 5 steps"), HasSubstr("end of the curve 12 steps"),
                    HasSubstr("--override_opt_param_scheduler"), HasSubstr("max_steps, which was 5 and is 12")));
  run("out", kind + Args{"--override_opt_param_scheduler"});
  const auto expected = read_steps(path("long")), found = read_steps(path("out"));
  ASSERT_EQ(found.size(), 7u);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i]["step"], expected[i + 5]["step"]);
    EXPECT_EQ(found[i]["learning_rate"], expected[i + 5]["learning_rate"]) << i;
  }
  // From updates to samples: 3 samples more of the warm-up with each step, and the same curve.
  run("samples", kind + Args{"--override_opt_param_scheduler", "--warmup_samples", "32", "--max_steps", "7"});
  EXPECT_NEAR(read_steps(path("samples")).front()["learning_rate"].get<double>(), 1e-3 * 20 / 32, 1e-12);
}

// Megatron's order is a shuffle over all epochs of the run.
TEST_F(ResumeSettings, ALongerRunOverTextIsRefusedWhereItsOrderWouldChange) {
  std::ofstream(path("text.txt")) << text_of(700);  // 21 samples: 5 steps
  const Args kind =
      one_ + constant_ + Args{"--train_data", path("text.txt"), "--seq_length", "32", "--tokenizer", "byte"};
  run("short", kind + Args{"--max_steps", "5"});
  EXPECT_THAT(refused(kind + resume("short/checkpoint-5")),
              AllOf(HasSubstr("max_steps 12"), HasSubstr("shuffled over all epochs"),
                    HasSubstr("were 1 with max_steps 5 and are 3"), HasSubstr("--ignore_data_skip")));
  run("out", kind + resume("short/checkpoint-5") + Args{"--ignore_data_skip"});
}

TEST_F(ResumeSettings, EveryChangeIsRefusedWithBothValuesAndWhatAllowsIt) {
  run("whole", one_);
  fs::copy(kTinyModel, path("other"));
  auto config = nlohmann::json::parse(bytes_of(path("other/config.json")));
  const std::string layers = config["num_hidden_layers"].dump();
  config["num_hidden_layers"] = config["num_hidden_layers"].get<int>() - 1;
  if (config.contains("layer_types")) config["layer_types"].erase(0);
  std::ofstream(path("other/config.json")) << config.dump();
  const std::string fewer = config["num_hidden_layers"].dump();
  const std::string data = write_rows("changed.jsonl", {{1, 64}, {0, 1}});
  struct Case {
    Args args;
    std::string saved, own;
    Args allowed;  // empty: nothing allows it
    bool runs = false;
  };
  const Args no_rng = {"--no_load_rng"}, no_optim = {"--no_load_optim"}, no_data = {"--ignore_data_skip"},
             schedule = {"--override_opt_param_scheduler"};
  const std::vector<Case> cases = {
      {{"--data_seed", "7"}, "data_seed 42", "data_seed 7", no_data, true},
      {{"--seed", "7", "--data_seed", "42"}, "seed 42", "seed 7", no_rng, true},
      {{"--train_data", data}, "contents ", "contents ", no_data},
      {{"--shuffle", "false"}, "shuffle true", "shuffle false", no_data},
      {{"--gradient_accumulation_steps", "2"}, "global batch size 4", "global batch size 2", no_data, true},
      {{"--optimizer", "sgd"}, "optimizer adam", "optimizer sgd", no_optim, true},
      {{"--bf16"}, "precision fp32", "precision bf16", no_optim, true},
      {{"--learning_rate", "2e-3"}, "learning_rate 0.001", "learning_rate 0.002", schedule, true},
      {{"--min_lr", "1e-4"}, "min_lr 0", "min_lr 0.0001", schedule},
      {{"--warmup_steps", "2"}, "warmup 0 steps", "warmup 2 steps", schedule},
      {{"--lr_scheduler_type", "cosine"}, "curve linear", "curve cosine", schedule},
      {{"--lr_decay_steps", "20"}, "end of the curve 12 steps", "end of the curve 20 steps", schedule},
      {{"--weight_decay", "0.1"}, "weight_decay 0", "weight_decay 0.1", schedule},
      {{"--model", path("other")}, "num_hidden_layers " + layers, "num_hidden_layers " + fewer, {}}};
  const Args kind = one_ + resume("whole/checkpoint-5") + Args{"--max_steps", "12"};
  for (const Case& each : cases) {
    SCOPED_TRACE(::testing::PrintToString(each.args));
    const std::string said = refused(kind + each.args);
    EXPECT_THAT(said, AllOf(HasSubstr("was saved with "), HasSubstr(each.saved), HasSubstr("but this run has "),
                            HasSubstr(each.own)));
    EXPECT_THAT(said, HasSubstr(each.allowed.empty() ? "--model " : each.allowed.front()));
    if (!each.runs) continue;
    fs::remove_all(path("allowed"));
    run("allowed", kind + each.args + each.allowed);
  }
  // Two at once.
  EXPECT_THAT(
      refused(kind + Args{"--optimizer", "sgd", "--seed", "7"}),
      AllOf(HasSubstr("3 settings differ"), HasSubstr("optimizer sgd"), HasSubstr("seed 7"), HasSubstr("data_seed 7")));
}

TEST_F(ResumeSettings, WhatChangesNothingIsAllowed) {
  run("whole", one_);
  fs::rename(path("data.jsonl"), path("moved.jsonl"));
  run("out", one_ + resume("whole/checkpoint-5") +
                 Args{"--train_data", path("moved.jsonl"), "--logging_steps", "1", "--save_steps", "2",
                      "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2", "--save_total_limit",
                      "3", "--warmup_ratio", "0", "--lr_decay_steps", "12", "--stage", "pt"});
  EXPECT_EQ(read_steps(path("out")).size(), 7u);
}

// Identical to a run from the weights: step 0, new optimizer, data and schedule from the start.
TEST_F(ResumeSettings, FinetuneTakesTheWeightsOnly) {
  run("whole", one_ + Args{"--max_steps", "7"});
  run("model", one_ + Args{"--model", path("whole/checkpoint-5"), "--learning_rate", "2e-3", "--seed", "7"});
  run("finetuned", one_ + resume("whole/checkpoint-5") + Args{"--finetune", "--learning_rate", "2e-3", "--seed", "7"});
  expect_same_tensors("model/checkpoint-12", "finetuned/checkpoint-12");
  const auto first = read_steps(path("model")), second = read_steps(path("finetuned"));
  ASSERT_EQ(first.size(), second.size());
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i]["loss"], second[i]["loss"]) << i;
  EXPECT_EQ(metadata("finetuned/checkpoint-12")["optimizer"]["steps"], 12);
  // Weights without metadata are enough; the model's own config is needed.
  run("again", one_ + resume("whole/model") + Args{"--finetune"});
  EXPECT_THAT(refused(one_ + Args{"--resume_from_checkpoint", "true", "--finetune"}),
              HasSubstr("name the checkpoint's folder"));
  TrainProgram same(run_args("whole", one_ + resume("whole/checkpoint-5") + Args{"--finetune"}));
  EXPECT_EQ(same.exit_code(), 2);
  EXPECT_THAT(same.err(), HasSubstr("contains another run"));
  TrainProgram deleted(
      run_args("whole", one_ + resume("whole/checkpoint-5") + Args{"--finetune", "--overwrite_output_dir"}));
  EXPECT_EQ(deleted.exit_code(), 2);
  EXPECT_THAT(deleted.err(), HasSubstr("is an input of this run"));
}

// A new run from the weights whose data begins where the checkpoint's ended: the same bits, except the numbers of
// steps.
TEST_F(ResumeSettings, WithoutItsStateTheOptimizerStartsAfreshWhereTheDataIs) {
  const Args ordered = one_ + Args{"--shuffle", "false"};
  for (const Args& type : {Args{}, Args{"--bf16"}, Args{"--fp16", "--initial_loss_scale", "1024"}}) {
    const int samples = type.empty() ? 4 : 1;  // per step; bf16 and fp16 are slow on a cpu
    const Args kind = type + Args{"--gradient_accumulation_steps", std::to_string(samples)};
    for (const char* out : {"whole", "out", "expected"}) fs::remove_all(path(out));
    run("whole", ordered + kind + Args{"--max_steps", "5"});
    run("out", ordered + kind + resume("whole/checkpoint-5") + Args{"--no_load_optim"});
    run("expected", ordered + kind +
                        Args{"--model", path("whole/checkpoint-5"), "--lr_decay_steps", "12", "--max_steps", "7",
                             "--train_data", write_rows("rest.jsonl", {{5 * samples, 64}})});
    expect_same_tensors("out/checkpoint-12", "expected/checkpoint-7");
    const nlohmann::json found = metadata("out/checkpoint-12"), expected = metadata("expected/checkpoint-7");
    EXPECT_EQ(found["step"], 12);
    for (const char* key : {"steps", "lr_counter", "loss_scaler"}) {
      EXPECT_EQ(found["optimizer"][key], expected["optimizer"][key]) << key;
    }
  }
}

// Compared with the run that was never stopped, over data in which the first rows are repeated.
TEST_F(ResumeSettings, TheDataStartsAtItsBeginningWhereItIsNotSkipped) {
  const Args ordered = one_ + constant_ + Args{"--shuffle", "false"};
  run("whole", ordered + Args{"--max_steps", "5"});
  run("out", ordered + resume("whole/checkpoint-5") + Args{"--ignore_data_skip"});
  run("expected", ordered + Args{"--train_data", write_rows("twice.jsonl", {{0, 20}, {0, 28}})});
  expect_same_tensors("out/checkpoint-12", "expected/checkpoint-12");
  EXPECT_EQ(metadata("out/checkpoint-12")["data"]["sample"], 28);
}

// A restarted attempt resumes from its own checkpoints: the flags were for the first one.
TEST_F(ResumeSettings, ARestartedAttemptDoesNotStartAfreshAgain) {
  const Args kind = constant_ + Args{"--gradient_accumulation_steps",
                                     "2",
                                     "--max_steps",
                                     "30",
                                     "--save_steps",
                                     "2",
                                     "--ignore_data_skip",
                                     "--no_load_optim"};
  run("before", constant_ + ranks(2, 2) + Args{"--max_steps", "5"});
  run("whole", kind + resume("before/checkpoint-5") + Args{"--nproc", "2"});
  const std::string script = "if [ \"$RANK\" = 1 ] && [ ! -e " + path("died") + " ]; then (while [ ! -e " +
                             path("out/checkpoint-10") + " ]; do sleep 0.02; done; touch " + path("died") +
                             "; kill -9 $$) & fi; exec \"$@\"";
  Launch job({"--nproc", "2", "--max_restarts", "1"},
             Args{"/bin/sh", "-c", script, "sh", LAUNCH_PROGRAM, "train"} +
                 run_args("out", kind + resume("before/checkpoint-5")),
             {.environment = {"OMP_NUM_THREADS=1"}});
  EXPECT_EQ(job.exit_code(), 0) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("restart 1 of 1"));
  expect_same_tensors("whole/checkpoint-30", "out/checkpoint-30");
}

// Training draws no numbers from the generators (dropout is counter-based), so their state stays constant: a state that
// the test has advanced shows whether it was loaded.
TEST_F(ResumeSettings, GeneratorsStartFreshWhereTheyAreNotLoaded) {
  run("whole", one_);
  nlohmann::json changed = metadata("whole/checkpoint-5");
  const auto fresh = changed["rng"]["ranks"];
  for (auto& state : changed["rng"]["ranks"][0]) state[2] = state[2].get<uint64_t>() + 8;
  std::ofstream(path("whole/checkpoint-5/metadata.json")) << changed.dump();
  fs::remove(path("whole/checkpoint-5/manifest.json"));  // it knows what was written
  run("loaded", one_ + resume("whole/checkpoint-5"));
  EXPECT_EQ(metadata("loaded/checkpoint-12")["rng"], changed["rng"]);
  run("fresh", one_ + resume("whole/checkpoint-5") + Args{"--no_load_rng"});
  EXPECT_EQ(metadata("fresh/checkpoint-12")["rng"]["ranks"], fresh);
}

// Files without the newer parts of the metadata are read; what they do not say is not compared.
TEST_F(ResumeSettings, AnOlderCheckpointIsResumed) {
  run("whole", one_);
  nlohmann::json older = metadata("whole/checkpoint-5");
  for (const char* name : {"job", "best"}) older.erase(name);
  for (const char* name : {"identity", "global_batch_size"}) older["data"].erase(name);
  for (const char* name : {"schedule", "lr_increment"}) older["optimizer"].erase(name);
  std::ofstream(path("whole/checkpoint-5/metadata.json")) << older.dump();
  fs::remove(path("whole/checkpoint-5/manifest.json"));  // it knows what was written
  run("out", one_ + resume("whole/checkpoint-5"));
  expect_same_tensors("whole/checkpoint-12", "out/checkpoint-12");
  EXPECT_THAT(refused(one_ + resume("whole/checkpoint-5") + Args{"--data_seed", "7"}), HasSubstr("other data"));
}

}  // namespace
}  // namespace concord::testing_processes
