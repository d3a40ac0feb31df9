// Shared by resume_test and resume_layouts_test: runs that are resumed with different layouts.
#pragma once

#include "tests/processes/train_program.h"

namespace concord::testing_processes {

namespace fs = std::filesystem;

using Args = std::vector<std::string>;

inline std::string bytes_of(const fs::path& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();  // in blocks; iterators are slow without optimisation
  return bytes.str();
}

inline Args operator+(Args args, const Args& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

struct Layout {
  std::string name;
  Args args;  // for 4 samples per step
};

inline Args ranks(int nproc, int accumulation) {
  return {"--nproc", std::to_string(nproc), "--gradient_accumulation_steps", std::to_string(accumulation)};
}

// Layouts of 1, 2 and 4 ranks.
inline std::vector<Layout> layouts() {
  const Args tp = {"--tensor_model_parallel_size", "2"}, pp = {"--pipeline_model_parallel_size", "2"},
             cp = {"--context_parallel_size", "2"}, zero = {"--use_distributed_optimizer"},
             chunks = {"--virtual_pipeline_model_parallel_size", "2"};
  return {{"one", ranks(1, 4)},
          {"offload", ranks(1, 4) + Args{"--optimizer_cpu_offload", "--optimizer_offload_fraction", "0.5"}},
          {"dp2", ranks(2, 2)},
          {"dp2_zero", ranks(2, 2) + zero},
          {"tp2", ranks(2, 4) + tp},
          {"tp2_sp", ranks(2, 4) + tp + Args{"--sequence_parallel"}},
          {"pp2", ranks(2, 4) + pp},
          {"pp2_vpp2", ranks(2, 4) + pp + chunks + Args{"--pipeline_schedule", "interleaved"}},
          {"pp2_zb_v", ranks(2, 4) + pp + chunks + Args{"--pipeline_schedule", "zb-v"}},
          {"pp2_custom", ranks(2, 4) + pp + Args{"--pipeline_model_parallel_layout", "E,t|t,t,t,L"}},
          {"cp2", ranks(2, 4) + cp},
          {"dp4_zero", ranks(4, 1) + zero},
          {"tp2_dp2_zero", ranks(4, 2) + tp + zero},
          {"tp2_pp2", ranks(4, 4) + tp + pp},
          {"pp2_dp2_zero", ranks(4, 2) + pp + zero}};
}

inline constexpr int kExpertTokens = 250;  // vocabulary of the model of expert_layouts()

// Layouts of a model with 4 experts on 1, 2 and 4 ranks: whole experts, split ones, and both, with the other axes.
inline std::vector<Layout> expert_layouts() {
  const Args model = {"--model", kGolden + "/hf/qwen2-moe-tiny"}, tp = {"--tensor_model_parallel_size", "2"},
             pp = {"--pipeline_model_parallel_size", "2"}, ep = {"--expert_model_parallel_size", "2"},
             etp1 = {"--expert_tensor_parallel_size", "1"}, etp2 = {"--expert_tensor_parallel_size", "2"},
             zero = {"--use_distributed_optimizer"};
  std::vector<Layout> layouts = {
      {"experts_one", ranks(1, 4)},
      {"experts_dp2_ep2", ranks(2, 2) + ep},
      {"experts_tp2_ep2_etp1", ranks(2, 4) + tp + Args{"--sequence_parallel"} + ep + etp1},
      {"experts_dp4_ep2_zero", ranks(4, 1) + ep + zero},
      {"experts_dp2_etp2_zero", ranks(2, 2) + etp2 + zero},
      {"experts_pp2_ep2", ranks(4, 2) + pp + ep},
      {"experts_dp4_ep2_etp2", ranks(4, 1) + ep + etp2},
      {"experts_cp2_dp2_ep4_zero",
       ranks(4, 2) + Args{"--context_parallel_size", "2", "--expert_model_parallel_size", "4"} + zero}};
  for (Layout& layout : layouts) layout.args = layout.args + model;
  return layouts;
}

class TrainResume : public Train {
 protected:
  Args run_args(const std::string& out, const Args& more) {
    return train_args(Args{"--train_data", path("data.jsonl"), "--per_device_train_batch_size", "1", "--max_steps",
                           "12", "--save_steps", "5", "--logging_steps", "3", "--learning_rate", "1e-3", "--output_dir",
                           path(out)} +
                      more);
  }
  // Returns its output.
  std::string run(const std::string& out, const Args& more) {
    TrainProgram program(run_args(out, more));
    EXPECT_EQ(program.exit_code(), 0) << program.err();
    return program.err();
  }
  // Returns the step of the latest checkpoint; 0 if there is none.
  int newest_checkpoint(const std::string& out) {
    int newest = 0;
    for (const auto& entry : fs::directory_iterator(path(out))) {
      const std::string name = entry.path().filename().string(), prefix = "checkpoint-";
      if (!name.starts_with(prefix) || name.find('.') != std::string::npos) continue;
      newest = std::max(newest, std::stoi(name.substr(prefix.size())));
    }
    return newest;
  }
  // Creates the state that a run killed after step 5 leaves behind.
  void make_killed(const std::string& from, const std::string& to) {
    fs::create_directories(path(to));
    fs::copy(path(from) + "/checkpoint-5", path(to) + "/checkpoint-5", fs::copy_options::recursive);
    for (const char* file : {".concord-run.json", "metrics.jsonl"}) fs::copy(path(from) + "/" + file, path(to));
  }
  // Compares losses, norms and rates of all log lines, evaluations, and the final tensors.
  void expect_same_run(const std::string& a, const std::string& b, int last_step) {
    for (const char* file : {"metrics.jsonl", "eval_metrics.jsonl"}) {
      const auto first = read_lines(path(a + "/" + file)), second = read_lines(path(b + "/" + file));
      ASSERT_EQ(first.size(), second.size()) << file;
      for (size_t i = 0; i < first.size(); ++i) {
        for (const char* key : {"step", "loss", "grad_norm", "grad_norm_max", "learning_rate", "tokens", "epoch",
                                "eval_loss", "loss_scale", "skipped_iter"}) {
          EXPECT_EQ(first[i].value(key, nlohmann::json()), second[i].value(key, nlohmann::json()))
              << key << " of line " << i << " of " << file;
        }
      }
    }
    const std::string last = "/checkpoint-" + std::to_string(last_step);
    expect_same_tensors(a + last, b + last);
    expect_same_bytes(weights_in(a + "/model"), weights_in(b + "/model"));
  }
  void expect_same_tensors(const std::string& a, const std::string& b) {
    expect_same_bytes(weights_in(a), weights_in(b));
    expect_same_bytes(a + "/optimizer.safetensors", b + "/optimizer.safetensors");
  }
  // Returns the weights file of a model or an adapter.
  std::string weights_in(const std::string& folder) const {
    const std::string adapter = folder + "/adapter_model.safetensors";
    return fs::exists(path(adapter)) ? adapter : folder + "/model.safetensors";
  }
  // Prints only the names of the files, since their contents would fill the screen.
  void expect_same_bytes(const std::string& a, const std::string& b) {
    const std::string first = bytes_of(path(a)), second = bytes_of(path(b));
    EXPECT_FALSE(first.empty()) << a;
    EXPECT_TRUE(first == second) << a << " and " << b << " differ";
  }
};

}  // namespace concord::testing_processes
