#include "trainer/cli/conform/golden_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <vector>

#include "core/safetensors/reader.h"
#include "core/safetensors/writer.h"
#include "trainer/report/files.h"
#include "trainer/report/history.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// What to expect of another implementation in fp32 (tests/golden/README.md); the norm's is relative.
constexpr double kLossBound = 5e-5, kNormBound = 5e-5;

std::vector<fs::path> folders(const fs::path& program) {
  return {program.parent_path().parent_path() / "share/concord/golden", CONCORD_GOLDEN_SOURCE};
}

ordered_json read_golden(const fs::path& folder) {
  std::ifstream file(folder / "train/full_batch.json");
  return ordered_json::parse(file);
}

}  // namespace

std::optional<GoldenRun> GoldenRun::find(const fs::path& program) {
  for (const fs::path& folder : folders(program)) {
    if (fs::exists(folder / "train/full_batch.json") && fs::exists(folder / "hf/qwen2-tiny/model.safetensors")) {
      return GoldenRun(folder);
    }
  }
  return std::nullopt;
}

std::string GoldenRun::places(const fs::path& program) {
  std::string text;
  for (const fs::path& folder : folders(program)) text += (text.empty() ? "tried " : ", ") + folder.string();
  return text;
}

std::string GoldenRun::write_input(const std::string& folder) const {
  fs::create_directories(folder);
  const safetensors::Reader tokens((folder_ / "train/tokens.safetensors").string());
  const safetensors::TensorInfo& ids = tokens.at("input_ids");
  safetensors::Writer writer(folder + "/data.safetensors",
                             {{"input_ids", ids.dtype, ids.shape}, {"labels", ids.dtype, ids.shape}});
  writer.write("input_ids", 0, tokens.data(ids));
  writer.write("labels", 0, tokens.data(tokens.at("labels_full")));
  writer.finish();
  const ordered_json golden = read_golden(folder_);
  const ordered_json& h = golden["hyperparameters"];
  const std::string config = folder + "/config.yaml";
  replace_file(
      config,
      fmt::format("model: {}\ntrain_data: {}/data.safetensors\noutput_dir: {}/out\nshuffle: false\n"
                  "per_device_train_batch_size: {}\ngradient_accumulation_steps: 1\nmax_steps: {}\n"
                  "learning_rate: {}\nmin_lr: {}\nwarmup_steps: {}\nlr_scheduler_type: cosine\nlr_step_offset: 1\n"
                  "adam_beta1: {}\nadam_beta2: {}\nadam_epsilon: {}\nweight_decay: {}\nmax_grad_norm: {}\n"
                  "logging_steps: 1\nreport_to: [none]\nsave_strategy: \"no\"\n"
                  "profile: true\nprofile_step_start: 5\nprofile_step_end: 15\n",
                  (folder_ / "hf/qwen2-tiny").string(), folder, folder, h["batch"].get<int>(), h["steps"].get<int>(),
                  h["lr"].get<double>(), h["min_lr"].get<double>(), h["warmup"].get<int>(), h["betas"][0].get<double>(),
                  h["betas"][1].get<double>(), h["eps"].get<double>(), h["weight_decay"].get<double>(),
                  h["clip"].get<double>()));
  return config;
}

ordered_json GoldenRun::compare(const std::string& folder) const {
  const ordered_json golden = read_golden(folder_);
  const std::vector<LoggedStep> logged = read_history(folder + "/out").steps;
  const ordered_json& wanted = golden["steps"];
  ordered_json steps = ordered_json::array();
  double loss_off = 0, norm_off = 0;
  bool is_whole = logged.size() == wanted.size();
  for (size_t i = 0; i < std::min(logged.size(), wanted.size()); ++i) {
    const double loss = wanted[i]["loss"].get<double>(), norm = wanted[i]["grad_norm"].get<double>();
    const double own_norm = logged[i].grad_norm.value_or(NAN);
    is_whole = is_whole && std::isfinite(logged[i].loss) && std::isfinite(own_norm);
    loss_off = std::max(loss_off, std::abs(logged[i].loss - loss));
    norm_off = std::max(norm_off, std::abs(own_norm - norm) / norm);
    steps.push_back({{"step", logged[i].step},
                     {"loss", logged[i].loss},
                     {"expected_loss", loss},
                     {"grad_norm", own_norm},
                     {"expected_grad_norm", norm}});
  }
  const bool passes = is_whole && loss_off <= kLossBound && norm_off <= kNormBound;
  return {{"steps", std::move(steps)},
          {"loss_bound", kLossBound},
          {"largest_loss_difference", loss_off},
          {"grad_norm_bound", kNormBound},
          {"largest_grad_norm_difference", norm_off},
          {"verdict", passes ? "pass" : "fail"}};
}

}  // namespace concord
