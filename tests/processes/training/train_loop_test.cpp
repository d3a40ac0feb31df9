// Arguments of the loop and its data, through the program: blends, splits, evaluation sets, batch size ramp-up, and
// early ends of a run. All of it resumes bitwise identically.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "tests/processes/training/resume_runs.h"

namespace concord::testing_processes {
namespace {

using ::testing::HasSubstr;

class TrainLoop : public TrainResume {
 protected:
  // Uses Megatron data, which replaces the samples of the other tests.
  Args blend(const std::string& blend) {
    return ranks(1, 4) + Args{"--train_data", "", "--train_data_blend", blend, "--seq_length", "8"};
  }
  void expect_resumes(const Args& kind) {
    run("whole", kind);
    make_killed("whole", "killed");
    run("killed", kind + Args{"--resume_from_checkpoint", "true"});
    expect_same_run("whole", "killed", 12);
  }
  std::vector<nlohmann::json> evaluations(const std::string& out) {
    return read_lines(path(out) + "/eval_metrics.jsonl");
  }
  // Returns the norm of all weights in |file|, which are fp32.
  double norm_of(const std::string& file) {
    const std::string bytes = bytes_of(path(file));
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    double squares = 0;
    for (size_t at = 8 + header; at < bytes.size(); at += 4) {
      float value = 0;
      std::memcpy(&value, bytes.data() + at, 4);
      squares += static_cast<double>(value) * value;
    }
    return std::sqrt(squares);
  }
  // Returns the bytes of all tensors whose names contain |part|, and of all others.
  std::pair<std::string, std::string> tensors(const std::string& file, const std::string& part) {
    const std::string bytes = bytes_of(file);
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    std::pair<std::string, std::string> found;
    const nlohmann::json entries = nlohmann::json::parse(bytes.substr(8, header));
    for (const auto& [name, entry] : entries.items()) {
      if (name == "__metadata__") continue;
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      (name.find(part) != std::string::npos ? found.first : found.second) +=
          bytes.substr(8 + header + begin, end - begin);
    }
    return found;
  }
  std::string model(const std::string& out) { return path(out) + "/model/model.safetensors"; }
  int64_t last_step(const std::string& out) { return read_steps(path(out)).back()["step"].get<int64_t>(); }
};

TEST_F(TrainLoop, ABlendIsSplitTestedAndResumed) {
  const Args kind = blend("0.3," + kGolden + "/data/multi,0.7," + kGolden + "/data/tokens") +
                    Args{"--split", "4,1,1", "--eval_steps", "7", "--eval_iters", "2", "--logging_steps", "3"};
  expect_resumes(kind);
  const auto lines = evaluations("whole");
  ASSERT_EQ(lines.size(), 2u) << "after step 7 and the last one";
  EXPECT_EQ(lines.back()["step"], 12);
  const auto test = nlohmann::json::parse(bytes_of(path("whole/test_results.json")));
  EXPECT_NEAR(std::exp(test["test_loss"].get<double>()), test["test_perplexity"].get<double>(), 1e-6);
  EXPECT_EQ(test["test_loss"], nlohmann::json::parse(bytes_of(path("killed/test_results.json")))["test_loss"]);
  EXPECT_THAT(refusal({"--split", "4,1,1", "--eval_data", "x"}), HasSubstr("split and validation or test data"));
  EXPECT_THAT(refusal({"--train_data_blend", "1,a"}), HasSubstr("train_data and train_data_blend are both given"));
}

TEST_F(TrainLoop, SetsAreEvaluatedOneByOneAndTogether) {
  const std::string first = write_jsonl(path("first.jsonl"), 6), second = write_jsonl(path("second.jsonl"), 10, 200);
  const Args kind = ranks(2, 2) + Args{"--max_steps", "4", "--eval_steps", "2"};
  run("sets", kind + Args{"--eval_datasets", "{first: " + first + ", second: " + second + "}", "--save_steps", "2",
                          "--metric_for_best_model", "eval_second_loss", "--load_best_model_at_end"});
  for (const auto& [name, file] : {std::pair{"first", first}, std::pair{"second", second}}) {
    fs::remove_all(path("one"));
    run("one", kind + Args{"--eval_data", file});
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(evaluations("sets")[i]["eval_" + std::string(name) + "_loss"], evaluations("one")[i]["eval_loss"])
          << name;
    }
  }
  const nlohmann::json last = evaluations("sets").back();
  const double a = last["eval_first_loss"], b = last["eval_second_loss"], all = last["eval_loss"];
  EXPECT_NEAR(all, (a * 6 + b * 10) / 16, 1e-6 * all) << "samples are of the same length";
  EXPECT_THAT(refusal({"--metric_for_best_model", "third_loss"}), HasSubstr("must be one of: loss, perplexity"));
}

// sample_source_test has the kinds of data.
TEST_F(TrainLoop, MaxSamplesTrainsOnTheFirstSamplesAndTellsRunsApart) {
  run("all", ranks(1, 4) + Args{"--max_steps", "1", "--save_strategy", "no"});  // writes data.jsonl
  std::ifstream all(path("data.jsonl"));
  std::ofstream first(path("first.jsonl"));
  std::string line;
  for (int i = 0; i < 10 && std::getline(all, line); ++i) first << line << "\n";
  first.close();
  const Args eval = {"--eval_data", path("data.jsonl"), "--eval_steps", "6"};
  run("file",
      ranks(1, 4) + Args{"--train_data", path("first.jsonl"), "--eval_data", path("first.jsonl"), "--eval_steps", "6"});
  run("limited", ranks(1, 4) + eval + Args{"--max_samples", "10"});
  expect_same_run("file", "limited", 12);
  EXPECT_THAT(
      refusal(ranks(1, 4) + Args{"--per_device_train_batch_size", "1", "--max_samples", "11", "--max_steps", "12",
                                 "--learning_rate", "1e-3", "--resume_from_checkpoint", path("limited/checkpoint-5")}),
      HasSubstr("this is other data"));
}

TEST_F(TrainLoop, EvaluationsBeginBeforeTheFirstStepOrLater) {
  const Args kind = ranks(1, 4) + Args{"--eval_data", write_jsonl(path("eval.jsonl"), 6), "--eval_steps", "3"};
  const Args late = kind + Args{"--eval_on_start", "--eval_delay", "5"};
  const auto evaluated = [this](const std::string& out) {
    std::map<int, double> losses;
    for (const nlohmann::json& line : evaluations(out)) losses[line["step"]] = line["eval_loss"];
    return losses;
  };
  run("untrained", kind + Args{"--max_steps", "1", "--learning_rate", "0", "--save_strategy", "no"});
  const double untrained = evaluated("untrained").at(1);
  run("whole", kind);
  std::map<int, double> wanted = evaluated("whole");
  ASSERT_EQ(wanted.size(), 4u) << "3, 6, 9 and 12";
  wanted.erase(3);
  make_killed("whole", "late");
  run("late", late + Args{"--resume_from_checkpoint", "true"});
  EXPECT_EQ(evaluated("late"), wanted) << "a resumed run has started before";
  expect_same_tensors("whole/checkpoint-12", "late/checkpoint-12");
  fs::remove_all(path("late"));
  run("late", late);
  wanted[0] = untrained;
  EXPECT_EQ(evaluated("late"), wanted);
  expect_same_tensors("whole/checkpoint-12", "late/checkpoint-12");
  // Epochs of 16 steps, of which the first is not evaluated, and the last step.
  run("epochs",
      kind + Args{"--max_steps", "40", "--eval_strategy", "epoch", "--eval_delay", "2", "--save_strategy", "no"});
  EXPECT_THAT(evaluated("epochs"), ::testing::ElementsAre(::testing::Key(32), ::testing::Key(40)));
  EXPECT_THAT(refusal({"--eval_on_start"}), HasSubstr("eval_on_start needs evaluation data"));
}

TEST_F(TrainLoop, ABatchThatGrowsAndStepsThatAreSkippedResume) {
  expect_resumes(ranks(1, 4) + Args{"--rampup_batch_size", "1,1,12", "--iterations_to_skip", "3,8", "--logging_steps",
                                    "1", "--log_params_norm", "--warmup_samples", "9"});
  const auto lines = read_lines(path("whole/metrics.jsonl"));
  std::vector<int> tokens;
  for (const nlohmann::json& line : lines) tokens.push_back(line["tokens"].get<int>() / 16);
  // Samples so far: 1 x 4, 2 x 2, 3 x 2 (after 8 and 11), then 4 each.
  EXPECT_THAT(tokens, ::testing::ElementsAre(1, 2, 3, 4, 6, 8, 11, 14, 18, 22, 26, 30));
  for (const size_t skipped : {2u, 7u}) {
    EXPECT_EQ(lines[skipped]["skipped_iter"], 1);
    EXPECT_TRUE(lines[skipped]["loss"].is_null());
  }
  EXPECT_NEAR(lines.back()["params_norm"].get<double>(), norm_of("whole/model/model.safetensors"), 1e-4);
  EXPECT_THAT(refusal({"--rampup_batch_size", "1,1"}), HasSubstr("must be three"));
  EXPECT_THAT(refusal({"--rampup_batch_size", "3,1,8", "--gradient_accumulation_steps", "4"}),
              HasSubstr("multiples of 2"));
  EXPECT_THAT(refusal({"--iterations_to_skip", "0"}), HasSubstr("not a whole number >= 1"));
}

// Replicas with different numbers of micro-batches train on the same rows, with the same draws, as replicas with equal
// numbers: sums differ by rounding only.
TEST_F(TrainLoop, AHeterogeneousSplitTrainsOnTheRowsOfTheEqualOne) {
  const Args dropout = {"--hidden_dropout", "0.1", "--logging_steps", "1"}, split = {"--heterogeneous_split", "3,1"};
  for (const Args& layout : {ranks(2, 4), ranks(4, 4) + Args{"--pipeline_model_parallel_size", "2"},
                             ranks(2, 2) + Args{"--per_device_train_batch_size", "3"}}) {
    for (const char* out : {"equal", "split"}) fs::remove_all(path(out));
    run("equal", layout + dropout);
    run("split", layout + dropout + split);
    const auto equal = read_steps(path("equal")), uneven = read_steps(path("split"));
    ASSERT_EQ(equal.size(), 12u);
    ASSERT_EQ(uneven.size(), 12u);
    for (size_t i = 0; i < equal.size(); ++i) {
      const double loss = equal[i]["loss"];
      EXPECT_NEAR(uneven[i]["loss"].get<double>(), loss, 1e-5 * loss) << "step " << i + 1;
      EXPECT_EQ(uneven[i]["tokens"], equal[i]["tokens"]);
    }
    EXPECT_NE(bytes_of(model("split")), bytes_of(model("equal"))) << "sums are in another order";
  }
  EXPECT_THAT(refusal(ranks(2, 1) + Args{"--heterogeneous_split", "3,1,1"}), HasSubstr("3 numbers for 2"));
  EXPECT_THAT(refusal(ranks(2, 2) + split + Args{"--calculate_per_token_loss", "false"}),
              HasSubstr("needs calculate_per_token_loss: true"));
}

TEST_F(TrainLoop, AHeterogeneousSplitIsResumed) {
  expect_resumes(ranks(2, 4) + Args{"--heterogeneous_split", "3,1", "--hidden_dropout", "0.1"});
}

// What the replicas' speeds are depends on the machine; what is done with them does not.
TEST_F(TrainLoop, MeasuredSpeedsAreSavedAndUsedAgain) {
  const Args kind = ranks(2, 8) + Args{"--heterogeneous_split", "auto", "--logging_steps", "1"};
  run("whole", kind);
  const auto saved = nlohmann::json::parse(bytes_of(path("whole/checkpoint-10/metadata.json")));
  ASSERT_EQ(saved["replica_speeds"].size(), 2u) << "measured in the steps 3 to 7";
  for (const nlohmann::json& speed : saved["replica_speeds"]) EXPECT_GE(speed.get<double>(), 1);
  EXPECT_TRUE(nlohmann::json::parse(bytes_of(path("whole/checkpoint-5/metadata.json")))["replica_speeds"].empty());
  run("resumed", kind + Args{"--resume_from_checkpoint", path("whole/checkpoint-10")});
  expect_same_tensors("whole/checkpoint-12", "resumed/checkpoint-12");
}

TEST_F(TrainLoop, MeasuredStagesAreSavedAndUsedAgain) {
  const Args stages = ranks(2, 4) + Args{"--pipeline_model_parallel_size", "2", "--logging_steps", "1"},
             kind = stages + Args{"--heterogeneous_split", "auto"};
  const auto layout_of = [this](const std::string& out) {
    const auto saved = nlohmann::json::parse(bytes_of(path(out) + "/checkpoint-12/metadata.json"));
    const std::string text = saved["arguments"]["pipeline_model_parallel_layout"];
    return text.substr(1, text.size() - 2);  // without quotes
  };
  run("whole", kind);
  const std::string layout = layout_of("whole");
  EXPECT_THAT(layout, ::testing::MatchesRegex("E,t\\*[123]\\|t\\*[123],L"));
  run("resumed", kind + Args{"--resume_from_checkpoint", path("whole/checkpoint-5")});
  EXPECT_EQ(layout_of("resumed"), layout);
  run("given", stages + Args{"--pipeline_model_parallel_layout", layout});
  expect_same_tensors("whole/checkpoint-12", "resumed/checkpoint-12");
  expect_same_tensors("whole/checkpoint-12", "given/checkpoint-12");
}

// Megatron's numbers for a run whose length is given in samples: steps, batch sizes and the learning rates of both
// groups.
TEST_F(TrainLoop, ARunInSamplesHasMegatronsStepsAndLearningRates) {
  const auto golden = nlohmann::json::parse(std::ifstream(kGolden + "/data/runs.json"))["runs"];
  // With a ramp on two ranks; on one rank with a decreasing batch, and with a ramp that is longer than the run.
  for (const size_t which : {0u, 3u, 4u}) {
    SCOPED_TRACE(which);
    const nlohmann::json& of = golden[which];
    const std::string ranks = std::to_string(of["dp_size"].get<int>());
    const auto text = [&](const char* name) { return of[name].dump(); };
    Args args = {"--nproc",
                 ranks,
                 "--max_steps",
                 "-1",
                 "--per_device_train_batch_size",
                 text("micro_batch_size"),
                 "--train_samples",
                 text("train_samples"),
                 "--global_batch_size",
                 text("global_batch_size"),
                 "--lr_scheduler_type",
                 "cosine",
                 "--learning_rate",
                 text("learning_rate"),
                 "--min_lr",
                 text("min_lr"),
                 "--decoupled_lr",
                 text("decoupled_lr"),
                 "--decoupled_min_lr",
                 text("decoupled_min_lr"),
                 "--lr_warmup_samples",
                 text("warmup_samples"),
                 "--logging_steps",
                 "1",
                 "--head_lr_mult",
                 "0.5",
                 "--lr_mult_pattern",
                 "{norm: 2}",
                 "--save_strategy",
                 "no"};
    if (of["decrease_batch_size_if_needed"].get<bool>()) args.push_back("--decrease_batch_size_if_needed");
    if (const nlohmann::json& ramp = of["rampup_batch_size"]; !ramp.is_null()) {
      args = args + Args{"--rampup_batch_size", ramp[0].dump() + "," + ramp[1].dump() + "," + ramp[2].dump()};
    }
    const std::string out = "samples" + std::to_string(which);
    run(out, args);
    const auto lines = read_steps(path(out));
    ASSERT_EQ(lines.size(), of["train_iters"].get<size_t>());
    int64_t tokens = 0;
    for (size_t i = 0; i < lines.size(); ++i) {
      const double lr = of["steps"][i]["learning_rate"], decoupled = of["steps"][i]["decoupled_learning_rate"];
      EXPECT_NEAR(lines[i]["learning_rate"].get<double>(), lr, 1e-12) << i;
      EXPECT_NEAR(lines[i]["decoupled_learning_rate"].get<double>(), decoupled, 1e-12) << i;
      EXPECT_NEAR(lines[i]["head_learning_rate"].get<double>(), decoupled / 2, 1e-12) << i;
      EXPECT_NEAR(lines[i]["learning_rate/norm"].get<double>(), lr * 2, 1e-12) << i;
      tokens += 16 * of["steps"][i]["global_batch_size"].get<int64_t>();
      EXPECT_EQ(lines[i]["tokens"].get<int64_t>(), tokens) << i;
    }
  }
}

// A batch of 5 is one of 4 on two ranks. With constant weights a step's loss is the mean of its samples' losses, which
// a run of one sample per step measures.
TEST_F(TrainLoop, ADecreasedBatchGoesOnWithTheNextSampleOnAnotherNumberOfRanks) {
  const Args still = {"--learning_rate", "1e-30", "--weight_decay",      "0",
                      "--logging_steps", "1",     "--lr_scheduler_type", "constant"};
  const Args kind = still + Args{"--global_batch_size", "5", "--decrease_batch_size_if_needed"};
  run("each", still + ranks(1, 1) + Args{"--max_steps", "22", "--save_strategy", "no"});
  run("decreased", kind + Args{"--nproc", "2", "--max_steps", "3", "--save_steps", "3"});
  run("decreased", kind + Args{"--nproc", "1", "--max_steps", "5", "--resume_from_checkpoint", "true",
                               "--override_opt_param_scheduler"});
  const auto each = read_steps(path("each")), steps = read_steps(path("decreased"));
  const size_t sizes[] = {4, 4, 4, 5, 5};
  ASSERT_EQ(steps.size(), 5u);
  size_t next = 0;
  for (size_t i = 0; i < 5; ++i) {
    double sum = 0;
    for (size_t end = next + sizes[i]; next < end; ++next) sum += each[next]["loss"].get<double>();
    const double mean = sum / static_cast<double>(sizes[i]);
    EXPECT_NEAR(steps[i]["loss"].get<double>(), mean, 1e-6 * mean) << "step " << i + 1;
    EXPECT_EQ(steps[i]["tokens"].get<size_t>(), 16 * next);
  }
}

// A run on long samples equals a run on samples that were truncated before, by hand.
TEST_F(TrainLoop, LongSamplesAreCutDroppedOrSplitAndCounted) {
  const auto write = [&](const std::string& name, const std::vector<std::vector<int>>& samples) {
    std::ofstream file(path(name));
    for (const std::vector<int>& ids : samples) file << nlohmann::json{{"input_ids", ids}}.dump() << "\n";
  };
  write("long.jsonl", {{1, 2, 3, 4, 5, 6, 7}, {11, 12, 13, 14}, {21, 22, 23, 24, 25}, {31, 32, 33}});
  const std::vector<int> second = {11, 12, 13, 14}, last = {31, 32, 33};
  write("right.jsonl", {{1, 2, 3, 4}, second, {21, 22, 23, 24}, last});
  write("drop.jsonl", {second, last});
  write("split.jsonl", {{1, 2, 3, 4}, {4, 5, 6, 7}, second, {21, 22, 23, 24}, {24, 25}, last});
  const std::map<std::string, std::string> said = {
      {"right", "4 samples; 2 cut to 4 tokens of 4 samples"},
      {"drop", "2 samples; 2 dropped of 4 samples"},
      {"split", "6 samples; 2 split into 4 pieces of up to 4 tokens of 4"}};
  const Args kind = ranks(1, 2) + Args{"--max_steps", "3", "--logging_steps", "1", "--save_strategy", "no"};
  for (const auto& [how, message] : said) {
    TrainProgram program(
        run_args(how, kind + Args{"--train_data", path("long.jsonl"), "--cutoff_len", "4", "--truncation", how}));
    ASSERT_EQ(program.exit_code(), 0) << program.err();
    EXPECT_THAT(program.out(), HasSubstr(message));
    run(how + "_by_hand", kind + Args{"--train_data", path(how + ".jsonl")});
    const auto cut = read_steps(path(how)), by_hand = read_steps(path(how + "_by_hand"));
    ASSERT_EQ(cut.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(cut[i]["loss"], by_hand[i]["loss"]) << how << ", step " << i + 1;
      EXPECT_EQ(cut[i]["tokens"], by_hand[i]["tokens"]) << how;
    }
  }
}

// A row of several documents equals these documents alone: positions, attention and labels.
TEST_F(TrainLoop, DocumentsOfARowAreLearntAsIfTheyWereAlone) {
  // Text under the byte tokenizer, where 256 ends a document. Two rows of 16 tokens, and one that the last predicts.
  std::ofstream text(path("docs.txt"));
  std::vector<int> tokens;
  for (const std::string document : {"abcd", "ef", "ghijk", "lmnopq", "r", "stuvwxyz01"}) {
    text << document << "\n\n";
    tokens.insert(tokens.end(), document.begin(), document.end());
    tokens.push_back(256);
  }
  text.close();
  std::ofstream alone(path("alone.jsonl"));
  nlohmann::json ids = nlohmann::json::array();
  for (size_t t = 0; t < 32; ++t) {
    ids.push_back(tokens[t]);
    const bool ends = tokens[t] == 256, ends_row = t % 16 == 15;
    if (!ends && !ends_row) continue;
    if (!ends) ids.push_back(tokens[t + 1]);
    alone << nlohmann::json{{"input_ids", ids}}.dump() << "\n";
    ids.clear();
  }
  alone.close();
  const int samples = static_cast<int>(read_lines(path("alone.jsonl")).size());
  const Args kind = {"--max_steps", "-1",   "--num_train_epochs", "3",     "--logging_steps", "1",
                     "--tokenizer", "byte", "--shuffle",          "false", "--save_strategy", "no"};
  run("alone", kind + Args{"--nproc", "1", "--train_data", path("alone.jsonl"), "--per_device_train_batch_size",
                           std::to_string(samples)});
  const auto expected = read_steps(path("alone"));
  const Args rows = kind + Args{"--train_data",
                                path("docs.txt"),
                                "--seq_length",
                                "16",
                                "--reset_position_ids",
                                "--reset_attention_mask",
                                "--eod_mask_loss",
                                "--per_device_train_batch_size",
                                "2"};
  const std::vector<Args> layouts = {
      {"--nproc", "1"},
      {"--nproc", "2", "--context_parallel_size", "2"},
      {"--nproc", "4", "--tensor_model_parallel_size", "2", "--pipeline_model_parallel_size", "2",
       "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2"}};
  for (const Args& layout : layouts) {
    fs::remove_all(path("rows"));
    run("rows", rows + layout);
    const auto steps = read_steps(path("rows"));
    ASSERT_EQ(steps.size(), 3u);
    ASSERT_EQ(expected.size(), 3u);
    for (size_t i = 0; i < steps.size(); ++i) {
      const double loss = expected[i]["loss"];
      EXPECT_NEAR(steps[i]["loss"].get<double>(), loss, 2e-5 * loss) << i << ::testing::PrintToString(layout);
    }
  }
  EXPECT_THAT(refusal({"--eod_mask_loss"}), HasSubstr("these samples come one by one"));
}

TEST_F(TrainLoop, TheNormOfTheWeightsIsTheSameUnderEveryLayout) {
  const Args kind = {"--max_steps", "2", "--logging_steps", "1", "--log_params_norm", "--log_num_zeros_in_grad"};
  run("one", ranks(1, 4) + kind);
  EXPECT_GT(read_steps(path("one")).back()["num_zeros_in_grad"],
            64);  // a row of the embedding whose token does not occur
  const double expected = read_steps(path("one")).back()["params_norm"];
  const std::vector<Args> layouts = {ranks(2, 4) + Args{"--tensor_model_parallel_size", "2"},
                                     ranks(2, 2) + Args{"--use_distributed_optimizer"},
                                     ranks(2, 4) + Args{"--pipeline_model_parallel_size", "2"}};
  for (const Args& each : layouts) {
    fs::remove_all(path("other"));
    run("other", each + kind);
    EXPECT_NEAR(read_steps(path("other")).back()["params_norm"].get<double>(), expected, 1e-5 * expected)
        << ::testing::PrintToString(each);
  }
}

TEST_F(TrainLoop, ARunInPartsIsTheWholeRun) {
  run("whole", ranks(1, 4));
  const Args part = ranks(1, 4) + Args{"--exit_interval", "5", "--resume_from_checkpoint", "true"};
  run("parts", part);
  EXPECT_EQ(newest_checkpoint("parts"), 5);
  EXPECT_FALSE(fs::exists(path("parts/checkpoint-10")));
  run("parts", part);
  run("parts", part);
  expect_same_run("whole", "parts", 12);
  run("short", ranks(2, 2) + Args{"--exit_duration_in_mins", "1e-6", "--logging_steps", "1"});
  EXPECT_EQ(newest_checkpoint("short"), 1);
}

TEST_F(TrainLoop, FrozenParametersStayAndGroupsHaveLearningRatesOfTheirOwn) {
  const Args frozen = ranks(1, 4) + Args{"--freeze", "embed_tokens,layers\\.[01]\\.mlp", "--optimizer", "lion"};
  expect_resumes(frozen);
  const std::string before = kTinyModel + "/model.safetensors";
  for (const char* part : {"embed_tokens", "layers.0.mlp", "layers.1.mlp"}) {
    EXPECT_FALSE(tensors(before, part).first.empty()) << part;
    EXPECT_TRUE(tensors(before, part).first == tensors(model("whole"), part).first) << part;
    EXPECT_FALSE(tensors(before, part).second == tensors(model("whole"), part).second) << part;
  }
  const Args shorter = ranks(1, 2) + Args{"--max_steps", "3", "--weight_decay", "0.1"};
  const auto same = [&](const Args& a, const Args& b) {
    for (const char* out : {"a", "b"}) fs::remove_all(path(out));
    run("a", shorter + a);
    run("b", shorter + b);
    expect_same_bytes("a/model/model.safetensors", "b/model/model.safetensors");
  };
  // Powers of two, so that products are exact. Decay is multiplied by the learning rate as well.
  same({"--learning_rate", "1e-3"}, {"--learning_rate", "2e-3", "--lr_mult_pattern", "{.: 0.5}"});
  same({"--learning_rate", "1e-3", "--decoupled_lr", "4e-3"},
       {"--learning_rate", "1e-3", "--lr_mult_pattern", "{embed_tokens|lm_head: 4}"});
  same({"--head_lr_mult", "0.25", "--weight_decay_mult_pattern", "{mlp: 0.5}"},
       {"--lr_mult_pattern", "{lm_head: 0.25}", "--weight_decay", "0.05", "--weight_decay_mult_pattern",
        "{embed_tokens|lm_head|self_attn: 2}"});
  const Args some_layers = {"--finetuning_type", "freeze", "--freeze_trainable_layers"};
  same(some_layers + Args{"1", "--freeze_extra_modules", "lm_head"},
       {"--freeze", "embed_tokens,layers\\.[0-2]\\.,^model\\.norm"});
  same(some_layers + Args{"-2", "--freeze_trainable_modules", "mlp"},
       {"--freeze", "embed_tokens,layers\\.[23]\\.,norm,self_attn,lm_head"});
  EXPECT_THAT(refusal(some_layers + Args{"5"}), HasSubstr("freeze_trainable_layers is 5, but the model has 4 layers"));
  EXPECT_THAT(refusal({"--freeze", "nothing"}), HasSubstr("'nothing' matches no parameter"));
  EXPECT_THAT(refusal({"--freeze", "q_proj"}), HasSubstr("matches only some of the 3 tensors"));
  EXPECT_THAT(refusal({"--freeze", "."}), HasSubstr("leaves nothing to train"));
  EXPECT_THAT(refusal({"--lr_mult_pattern", "{norm: x}"}), HasSubstr("is not a number >= 0"));
}

// tests/parity/lora_in_peft.py compares with peft's groups.
TEST_F(TrainLoop, MatricesBOfAnAdapterHaveALearningRateOfTheirOwn) {
  const Args lora = ranks(1, 4) + Args{"--finetuning_type", "lora", "--use_dora", "--lora_target", "q_proj,down_proj"};
  expect_resumes(lora + Args{"--loraplus_lr_ratio", "4"});
  for (const nlohmann::json& step : read_steps(path("whole"))) {
    EXPECT_EQ(step["loraplus_learning_rate"].get<double>(), 4 * step["learning_rate"].get<double>());
  }
  run("pattern", lora + Args{"--lr_mult_pattern", "{lora_B|magnitude: 4}"});  // a power of two: products are exact
  expect_same_bytes(weights_in("whole/model"), weights_in("pattern/model"));
  run("plain", lora);
  EXPECT_FALSE(bytes_of(path(weights_in("whole/model"))) == bytes_of(path(weights_in("plain/model"))));
  EXPECT_THAT(refusal({"--loraplus_lr_ratio", "4"}), HasSubstr("is for adapters; set finetuning_type: lora"));
}

// core/ops compares the operator with libtorch's; here it gets the coefficients, in training only. Both terms are
// linear in their coefficients.
TEST_F(TrainLoop, SmoothingAndZLossAreTrainedAndNotEvaluated) {
  const auto losses = [&](const Args& more) {
    fs::remove_all(path("smooth"));
    run("smooth", ranks(1, 1) +
                      Args{"--max_steps", "1", "--logging_steps", "1", "--save_strategy", "no", "--learning_rate", "0",
                           "--eval_data", path("data.jsonl")} +
                      more);
    return std::pair<double, double>(read_steps(path("smooth")).back()["loss"],
                                     evaluations("smooth").back()["eval_loss"]);
  };
  const auto [plain, plain_eval] = losses({});
  for (const Args& term : {Args{"--label_smoothing_factor", "0.1", "0.2"}, Args{"--z_loss_coeff", "0.01", "0.02"}}) {
    const auto [once, once_eval] = losses({term[0], term[1]});
    const auto [twice, twice_eval] = losses({term[0], term[2]});
    EXPECT_GT(std::abs(once - plain), 1e-4) << term[0];
    EXPECT_NEAR(twice - plain, 2 * (once - plain), 1e-5) << term[0];
    EXPECT_EQ(once_eval, plain_eval) << term[0];
    EXPECT_EQ(twice_eval, plain_eval) << term[0];
  }
  EXPECT_THAT(refusal({"--label_smoothing_factor", "1"}), HasSubstr("label_smoothing_factor"));
}

// tests/parity/dropout.py compares the noise; here it is of training only, and another one at every step.
TEST_F(TrainLoop, NoiseIsTrainedAndNotEvaluated) {
  const auto losses = [&](const Args& more) {
    fs::remove_all(path("noisy"));
    run("noisy", ranks(1, 1) +
                     Args{"--max_steps", "2", "--logging_steps", "1", "--save_strategy", "no", "--learning_rate", "0",
                          "--eval_data", path("data.jsonl")} +
                     more);
    const auto steps = read_steps(path("noisy"));
    return std::array<double, 3>{steps[0]["loss"], steps[1]["loss"], evaluations("noisy").back()["eval_loss"]};
  };
  const auto plain = losses({}), noisy = losses({"--neftune_noise_alpha", "15"});
  EXPECT_GT(std::abs(noisy[0] - plain[0]), 1e-4);
  EXPECT_GT(std::abs(noisy[1] - plain[1]), 1e-4);
  EXPECT_GT(std::abs((noisy[0] - plain[0]) - (noisy[1] - plain[1])), 1e-5);
  EXPECT_EQ(noisy[2], plain[2]);
}

// Vocabulary and sequence split over ranks, deferred weight gradients, overlapped reductions: losses in chunks,
// computed once or twice, equal those without chunks.
TEST_F(TrainLoop, LossesInChunksTrainTheSameUnderLayouts) {
  const Args zb = {"--pipeline_model_parallel_size",
                   "2",
                   "--virtual_pipeline_model_parallel_size",
                   "2",
                   "--pipeline_schedule",
                   "zb-v"};
  const Args tp = {"--tensor_model_parallel_size", "2"};
  const Args whole_sequences = {"--sequence_parallel", "false"};
  const Args dp = {"--use_distributed_optimizer", "--overlap_grad_reduce", "true", "--ddp_bucket_size", "1000"};
  for (const Args& layout :
       {ranks(2, 4) + tp, ranks(2, 4) + tp + whole_sequences, ranks(2, 4) + zb, ranks(2, 2) + dp}) {
    const auto losses = [&](const std::string& size) {
      fs::remove_all(path("chunks"));
      run("chunks", layout + Args{"--max_steps", "4", "--logging_steps", "1", "--save_strategy", "no",
                                  "--label_smoothing_factor", "0.1", "--loss_chunk_size", size});
      std::vector<double> all;
      for (const nlohmann::json& line : read_steps(path("chunks"))) all.push_back(line["loss"]);
      return all;
    };
    const std::vector<double> whole = losses("0"), chunked = losses("3");
    ASSERT_EQ(whole.size(), 4u);
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(chunked[i], whole[i], 2e-6) << layout.back() << ", " << i;
    EXPECT_NE(whole.front(), whole.back());
  }
}

TEST_F(TrainLoop, TimesOfTheStepsPartsAreLoggedOverRanks) {
  const Args kind = ranks(2, 2) + Args{"--max_steps", "3", "--logging_steps", "1", "--save_strategy", "no"};
  run("timed", kind + Args{"--timing_log_level", "1", "--timing_log_option", "all"});
  const nlohmann::json line = read_steps(path("timed")).back();
  double sum = 0;
  for (const std::string part : {"forward_backward", "reduce", "optimizer", "data", "save"}) {
    for (const std::string rank : {"0", "1"}) {
      ASSERT_TRUE(line.contains("time_" + part + "_rank_" + rank)) << part;
    }
    sum += line["time_" + part + "_rank_0"].get<double>();
  }
  EXPECT_GT(line["time_forward_backward_rank_1"].get<double>(), 0);
  EXPECT_LE(sum, line["seconds"].get<double>() * 1.001) << "parts of a step";
  fs::remove_all(path("timed"));
  run("timed", kind + Args{"--timing_log_level", "1"});
  const nlohmann::json both = read_steps(path("timed")).back();
  EXPECT_LE(both["time_optimizer_min"].get<double>(), both["time_optimizer_max"].get<double>());
  EXPECT_FALSE(both.contains("time_optimizer_rank_0"));
  EXPECT_THAT(refusal({"--timing_log_option", "median"}), HasSubstr("max, minmax, all"));
}

TEST_F(TrainLoop, ForwardAndBackwardOfAPipelineHaveTheirOwnTimes) {
  run("timed", ranks(2, 4) + Args{"--pipeline_model_parallel_size", "2", "--max_steps", "3", "--logging_steps", "1",
                                  "--save_strategy", "no", "--timing_log_level", "2", "--timing_log_option", "all"});
  const nlohmann::json line = read_steps(path("timed")).back();
  for (const std::string rank : {"0", "1"}) {
    const auto seconds = [&](const std::string& part) { return line["time_" + part + "_rank_" + rank].get<double>(); };
    EXPECT_GT(seconds("forward"), 0);
    EXPECT_GT(seconds("backward"), 0);
    EXPECT_LE(seconds("forward") + seconds("backward"), seconds("forward_backward") * 1.001) << "parts of it";
  }
}

// Spans are nested or disjoint, so that a viewer can stack them.
TEST_F(TrainLoop, AProfileHasSpansThatNest) {
  const Args kind =
      ranks(2, 4) +
      Args{"--pipeline_model_parallel_size", "2", "--max_steps",        "4", "--save_strategy", "no", "--profile",
           "--profile_step_start",           "1", "--profile_step_end", "3"};
  run("profiled", kind + Args{"--profile_ranks", "1"});
  EXPECT_FALSE(fs::exists(path("profiled/profile/rank_0.json")));
  const auto trace = nlohmann::json::parse(bytes_of(path("profiled/profile/rank_1.json")));
  std::map<std::string, int> found;
  std::vector<std::pair<double, double>> spans;  // on the training thread
  const nlohmann::json* step = nullptr;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++found[event["name"].get<std::string>()];
    if (event["name"] == "step 2") step = &event;
  }
  ASSERT_NE(step, nullptr);
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] == "X" && event["tid"] == (*step)["tid"]) {
      spans.emplace_back(event["ts"].get<double>(), event["ts"].get<double>() + event["dur"].get<double>());
    }
  }
  for (const char* name : {"step 2", "step 3", "forward_backward", "data", "reduce", "concord::linear"}) {
    EXPECT_GT(found[name], 0) << name;
  }
  EXPECT_EQ(found["forward 1F0"], 2) << "once in each step";
  EXPECT_EQ(found["backward 1B0"], 2);
  int layers = 0;
  for (const auto& [name, times] : std::map(found)) {
    if (!name.starts_with("layers.") || name.ends_with(" backward")) continue;
    EXPECT_EQ(found[name + " backward"], times) << name;
    ++layers;
  }
  EXPECT_GE(layers, 1);
  EXPECT_EQ(found.count("step 1") + found.count("step 4") + found.count("forward 0F0"), 0u);
  std::sort(spans.begin(), spans.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first < b.first : a.second > b.second; });
  std::vector<double> open;
  const double rounding = 0.002;  // two numbers with three digits after the decimal point
  for (const auto& [begin, end] : spans) {
    while (!open.empty() && open.back() <= begin + rounding) open.pop_back();
    if (!open.empty()) {
      ASSERT_LE(end, open.back() + rounding);
    }
    open.push_back(end);
  }
  EXPECT_THAT(refusal({"--profile", "--profile_ranks", "7"}), HasSubstr("profile_ranks has '7'"));
}

// HF's EarlyStoppingCallback, step by step.
TEST_F(TrainLoop, StopsWhenEvaluationsStopGettingBetter) {
  std::ofstream file(path("eval.jsonl"));
  for (int i = 0; i < 8; ++i) {
    file << "{\"input_ids\": [";
    for (int t = 0; t < 16; ++t) file << (t ? ", " : "") << (i * 31 + (15 - t) * 7) % 300;
    file << "]}\n";
  }
  file.close();
  const Args kind =
      ranks(1, 4) + Args{"--eval_data",         path("eval.jsonl"), "--eval_steps", "1", "--learning_rate", "1e-2",
                         "--lr_scheduler_type", "constant",         "--save_steps", "3"};
  run("whole", kind);
  const auto ends_with = [lines = evaluations("whole")](double given) {
    int64_t waited = 0;
    double best = INFINITY;
    for (const nlohmann::json& line : lines) {
      const double loss = line["eval_loss"];
      waited = loss < best && std::abs(loss - best) > given ? 0 : waited + 1;
      best = std::min(best, loss);
      if (waited == 3) return line["step"].get<int64_t>();
    }
    return int64_t{12};
  };
  double threshold = 0.05;  // large enough to matter
  while (threshold < 10 && (ends_with(threshold) == ends_with(0) || ends_with(threshold) % 3 == 0)) threshold *= 1.5;
  const int64_t expected = ends_with(threshold);
  ASSERT_LT(expected, ends_with(0));
  ASSERT_NE(expected % 3, 0) << "the checkpoint below would be the end";
  const Args stopping =
      kind + Args{"--early_stopping_patience", "3", "--early_stopping_threshold", std::to_string(threshold)};
  run("stopped", stopping);
  EXPECT_EQ(newest_checkpoint("stopped"), expected);
  EXPECT_EQ(static_cast<int64_t>(evaluations("stopped").size()), expected);
  // The number of evaluations without improvement is part of a checkpoint.
  const int64_t middle = expected / 3 * 3;
  fs::create_directories(path("resumed"));
  fs::copy(path("stopped/checkpoint-" + std::to_string(middle)), path("resumed/checkpoint-" + std::to_string(middle)),
           fs::copy_options::recursive);
  for (const char* name : {".concord-run.json", "metrics.jsonl", "eval_metrics.jsonl"}) {
    fs::copy(path("stopped/") + name, path("resumed"));
  }
  run("resumed", stopping + Args{"--resume_from_checkpoint", "true"});
  EXPECT_EQ(newest_checkpoint("resumed"), expected);
  EXPECT_THAT(refusal({"--early_stopping_patience", "3"}), HasSubstr("but there are none"));
}

}  // namespace
}  // namespace concord::testing_processes
