#include "trainer/checkpoint/training_state.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/parse_json.h"
#include "core/checkpoint/crc32.h"
#include "core/checkpoint/manifest.h"

namespace concord {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kFormat = 1;
constexpr uint64_t kMaxBytes = 256 << 20;  // limit for metadata.json: a million ranks have about 200 MB of generators

// JSON cannot represent numbers that are not finite.
Json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}
double to_number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  const auto text = value.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  throw ConfigError(fmt::format("'{}' is not a number", text));
}

double positive_number(const Json& value) {
  const auto result = value.get<double>();
  if (result > 0 && std::isfinite(result)) return result;
  throw ConfigError(fmt::format("{} is not a number above 0", result));
}

Json to_json(const LogWindow& window) {
  return {{"tokens", window.tokens},
          {"samples", window.samples},
          {"squared_lengths", number(window.squared_lengths)},
          {"patches", window.patches},
          {"squared_patches", number(window.squared_patches)},
          {"seconds", number(window.seconds)},
          {"steps", window.steps},
          {"skipped", window.skipped},
          {"untrained", window.untrained},
          {"last_grad_norm", number(window.last_grad_norm)},
          {"largest_grad_norm", number(window.largest_grad_norm)}};
}
LogWindow window_of(const Json& json) {
  return {.tokens = json.at("tokens").get<int64_t>(),
          .samples = json.at("samples").get<int64_t>(),
          .squared_lengths = to_number(json.at("squared_lengths")),
          .patches = json.value("patches", int64_t{0}),
          .squared_patches = json.contains("squared_patches") ? to_number(json.at("squared_patches")) : 0,
          .seconds = to_number(json.at("seconds")),
          .steps = json.at("steps").get<int64_t>(),
          .skipped = json.at("skipped").get<int64_t>(),
          .untrained = json.value("untrained", int64_t{0}),
          .last_grad_norm = to_number(json.at("last_grad_norm")),
          .largest_grad_norm = to_number(json.at("largest_grad_norm"))};
}

Json to_json(const SavedLayout& layout) {
  return {{"world", layout.world},          {"tensor_parallel", layout.tp},  {"pipeline_parallel", layout.pp},
          {"virtual_pipeline", layout.vpp}, {"context_parallel", layout.cp}, {"data_parallel", layout.dp},
          {"expert_parallel", layout.ep},   {"expert_tensor", layout.etp},   {"order", layout.order},
          {"platform", layout.platform}};
}
SavedLayout layout_of(const Json& json) {
  return {.world = json.at("world").get<int64_t>(),
          .tp = json.at("tensor_parallel").get<int64_t>(),
          .pp = json.at("pipeline_parallel").get<int64_t>(),
          .vpp = json.at("virtual_pipeline").get<int64_t>(),
          .cp = json.at("context_parallel").get<int64_t>(),
          .dp = json.at("data_parallel").get<int64_t>(),
          .ep = json.value("expert_parallel", int64_t{1}),  // older files are of layouts without
          .etp = json.value("expert_tensor", json.at("tensor_parallel").get<int64_t>()),
          .order = json.at("order").get<std::string>(),
          .platform = json.at("platform").get<std::string>()};
}

// Every rank has the same streams: their names once, then three numbers for each rank and stream.
Json to_json(const std::vector<std::vector<RngState>>& ranks) {
  Json names = Json::array(), states = Json::array();
  if (!ranks.empty()) {
    for (const RngState& each : ranks.front()) names.push_back(each.name);
  }
  for (const auto& rank : ranks) {
    Json numbers = Json::array();
    for (const RngState& each : rank) {
      numbers.push_back({each.state.key, each.state.subsequence, each.state.offset});
    }
    states.push_back(std::move(numbers));
  }
  return {{"streams", std::move(names)}, {"ranks", std::move(states)}};
}
std::vector<std::vector<RngState>> rng_of(const Json& json) {
  const auto names = json.at("streams").get<std::vector<std::string>>();
  std::vector<std::vector<RngState>> ranks;
  for (const Json& numbers : json.at("ranks")) {
    if (numbers.size() != names.size())
      throw ConfigError("a rank has another number of generators than there are names");
    std::vector<RngState>& rank = ranks.emplace_back();
    for (size_t i = 0; i < names.size(); ++i) {
      rank.push_back(
          {names[i],
           {numbers[i].at(0).get<uint64_t>(), numbers[i].at(1).get<uint64_t>(), numbers[i].at(2).get<uint64_t>()}});
    }
  }
  return ranks;
}

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }
uint64_t from_hex(const std::string& text) {
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw ConfigError(fmt::format("'{}' is not a fingerprint of 16 hexadecimal digits", text));
  }
  return std::stoull(text, nullptr, 16);
}

Json to_json(const std::optional<LossScalerState>& scaler) {
  if (!scaler) return nullptr;
  return {{"scale", number(scaler->scale)},
          {"growth_tracker", scaler->growth_tracker},
          {"hysteresis_tracker", scaler->hysteresis_tracker}};
}
std::optional<LossScalerState> scaler_of(const Json& json) {
  if (json.is_null()) return std::nullopt;
  return LossScalerState{.scale = to_number(json.at("scale")),
                         .growth_tracker = json.at("growth_tracker").get<int64_t>(),
                         .hysteresis_tracker = json.at("hysteresis_tracker").get<int64_t>()};
}

Json to_json(const std::vector<std::pair<std::string, std::string>>& texts) {
  Json json = Json::object();
  for (const auto& [name, value] : texts) json[name] = value;
  return json;
}
// Returns the texts of |name|; empty if it is missing.
std::vector<std::pair<std::string, std::string>> texts_of(const Json& parent, const char* name) {
  std::vector<std::pair<std::string, std::string>> texts;
  if (!parent.contains(name)) return texts;
  for (const auto& [key, value] : parent.at(name).items()) texts.emplace_back(key, value.get<std::string>());
  return texts;
}

Json to_json(const std::optional<BestEvaluation>& best) {
  if (!best) return nullptr;
  return {{"metric", number(best->metric)}, {"step", best->step}, {"checkpoint", best->checkpoint}};
}
std::optional<BestEvaluation> best_of(const Json& parent) {
  if (!parent.contains("best") || parent.at("best").is_null()) return std::nullopt;
  const Json& json = parent.at("best");
  return BestEvaluation{.metric = to_number(json.at("metric")),
                        .step = json.at("step").get<int64_t>(),
                        .checkpoint = json.at("checkpoint").get<std::string>()};
}

TrainingState state_of(const Json& json) {
  if (const auto format = json.at("format").get<int64_t>(); format != kFormat) {
    throw ConfigError(fmt::format("has format {}, but this version reads format {}", format, kFormat));
  }
  TrainingState state;
  state.step = json.at("step").get<int64_t>();
  state.tokens = json.at("tokens").get<int64_t>();
  state.epoch = json.at("epoch").get<int64_t>();
  state.steps_in_epoch = json.at("steps_in_epoch").get<int64_t>();
  state.job = json.value("job", "");
  state.best = best_of(json);
  state.early_stopping_waited = json.value("early_stopping_waited", int64_t{0});
  const Json& data = json.at("data");
  state.data_identity = texts_of(data, "identity");
  state.global_batch_size = data.value("global_batch_size", int64_t{0});
  state.data = {.epoch = data.at("epoch").get<int64_t>(),
                .sample = data.at("sample").get<int64_t>(),
                .fingerprint = from_hex(data.at("fingerprint").get<std::string>()),
                .consumed = data.value("consumed", int64_t{0})};
  const Json& optimizer = json.at("optimizer");
  state.optimizer = optimizer.at("name").get<std::string>();
  state.optimizer_steps = optimizer.at("steps").get<int64_t>();
  state.lr_counter = optimizer.at("lr_counter").get<int64_t>();
  state.lr_increment = optimizer.value("lr_increment", int64_t{0});
  state.schedule = texts_of(optimizer, "schedule");
  state.loss_scaler = scaler_of(optimizer.at("loss_scaler"));
  const Json& loss = json.at("loss");
  state.loss_sum = to_number(loss.at("sum"));
  state.loss_steps = loss.at("steps").get<int64_t>();
  for (const Json& each : loss.at("unlogged")) state.unlogged_losses.push_back(to_number(each));
  state.window = window_of(loss.at("window"));
  state.layout = layout_of(json.at("layout"));
  for (const Json& each : json.value("replica_speeds", Json::array()))
    state.replica_speeds.push_back(positive_number(each));
  state.rng = rng_of(json.at("rng"));
  state.arguments = texts_of(json, "arguments");
  if (state.step < 0 || state.epoch < 0 || state.steps_in_epoch < 0 || state.optimizer_steps < 0) {
    throw ConfigError("a number of steps is negative");
  }
  return state;
}

// Throws ConfigError if the manifest has a different checksum: a changed number would change the run silently.
void check_checksum(const std::string& folder, const std::string& metadata) {
  if (!has_manifest(folder)) return;
  const Manifest manifest = read_manifest(folder);
  const auto entry = manifest.files.find(kMetadataFile);
  const uint32_t found = crc32(std::as_bytes(std::span(metadata)));
  if (entry == manifest.files.end() || entry->second.crc32 == found) return;
  throw ConfigError(fmt::format("{} is damaged: {} has the checksum {}, but the manifest has {}", folder, kMetadataFile,
                                checksum_text(found), checksum_text(entry->second.crc32)));
}

}  // namespace

std::string to_json(const TrainingState& state) {
  Json unlogged = Json::array();
  for (const double loss : state.unlogged_losses) unlogged.push_back(number(loss));
  const Json json = {{"format", kFormat},
                     {"step", state.step},
                     {"tokens", state.tokens},
                     {"epoch", state.epoch},
                     {"steps_in_epoch", state.steps_in_epoch},
                     {"job", state.job},
                     {"best", to_json(state.best)},
                     {"early_stopping_waited", state.early_stopping_waited},
                     {"data",
                      {{"epoch", state.data.epoch},
                       {"sample", state.data.sample},
                       {"fingerprint", hex(state.data.fingerprint)},
                       {"consumed", state.data.consumed},
                       {"identity", to_json(state.data_identity)},
                       {"global_batch_size", state.global_batch_size}}},
                     {"optimizer",
                      {{"name", state.optimizer},
                       {"steps", state.optimizer_steps},
                       {"lr_counter", state.lr_counter},
                       {"lr_increment", state.lr_increment},
                       {"schedule", to_json(state.schedule)},
                       {"loss_scaler", to_json(state.loss_scaler)}}},
                     {"loss",
                      {{"sum", number(state.loss_sum)},
                       {"steps", state.loss_steps},
                       {"unlogged", std::move(unlogged)},
                       {"window", to_json(state.window)}}},
                     {"layout", to_json(state.layout)},
                     {"replica_speeds", state.replica_speeds},
                     {"rng", to_json(state.rng)},
                     {"arguments", to_json(state.arguments)}};
  return json.dump(1) + "\n";
}

TrainingState parse_training_state(const std::string& json, const std::string& file) {
  const Json document = parse_json<Json>(json, file);
  try {
    return state_of(document);
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(fmt::format("{}: is not the metadata of a checkpoint: {}", file, json_reason(error)));
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", file, error.what()));
  }
}

TrainingState read_training_state(const std::string& folder) {
  const std::string file = folder + "/" + kMetadataFile;
  if (!can_resume_from(folder)) {
    throw ConfigError(
        fmt::format("{}: has no {}, so a run cannot be resumed from it; to start a new run from its "
                    "weights, use --model {}",
                    folder, kMetadataFile, folder));
  }
  const std::string text = InputFile(file).read(kMaxBytes, "the metadata of a checkpoint");
  check_checksum(folder, text);
  return parse_training_state(text, file);
}

bool can_resume_from(const std::string& folder) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(folder + "/" + kMetadataFile, ignored);
}

}  // namespace concord
