#include "trainer/report/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "core/base/parse_json.h"
#include "core/base/quoted.h"
#include "trainer/report/files.h"

namespace concord {
namespace {

using nlohmann::ordered_json;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Builds a line; records the numbers that JSON cannot represent.
class Line {
 public:
  void put(const std::string& name, double value) {
    if (std::isfinite(value)) {
      object_[name] = value;
      return;
    }
    object_[name] = nullptr;
    non_finite_[name] = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
  void put(const std::string& name, int64_t value) { object_[name] = value; }
  void put_unknown(const std::string& name) { object_[name] = nullptr; }
  void put_all(const NamedValues& values) {
    for (const auto& [name, value] : values) put(name, value);
  }
  std::string text() {
    if (!non_finite_.empty()) object_["non_finite"] = non_finite_;
    return object_.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  }

 private:
  ordered_json object_ = ordered_json::object();
  ordered_json non_finite_ = ordered_json::object();
};

// Parses a line; remaining fields at the end are |extra|.
class Fields {
 public:
  explicit Fields(ordered_json object) : object_(std::move(object)) {
    if (!object_.is_object()) throw std::runtime_error("not an object");
    non_finite_ = object_.value("non_finite", ordered_json::object());
    object_.erase("non_finite");
  }

  std::optional<double> take(const std::string& name) {
    if (!object_.contains(name)) return std::nullopt;
    const bool unknown = object_[name].is_null() && !non_finite_.contains(name);
    const double value = number(name, object_[name]);
    object_.erase(name);
    return unknown ? std::nullopt : std::optional(value);
  }
  double take_or_zero(const std::string& name) { return take(name).value_or(0); }
  int64_t take_whole(const std::string& name) {
    if (!object_.contains(name)) return 0;
    if (!object_[name].is_number_integer()) throw std::runtime_error(name + " is not an integer");
    const auto value = object_[name].get<int64_t>();
    object_.erase(name);
    return value;
  }
  NamedValues rest() const {
    NamedValues values;
    for (const auto& [name, value] : object_.items()) values.emplace_back(name, number(name, value));
    return values;
  }

 private:
  double number(const std::string& name, const ordered_json& value) const {
    if (!value.is_null()) return value.get<double>();
    const std::string text = non_finite_.value(name, "nan");
    if (text == "nan") return kNan;
    return text == "inf" ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
  }

  ordered_json object_;
  ordered_json non_finite_;
};

LoggedStep step_of(ordered_json line) {
  Fields fields(std::move(line));
  LoggedStep step;
  step.step = fields.take_whole("step");
  step.epoch = fields.take_or_zero("epoch");
  step.loss = fields.take("loss").value_or(kNan);
  step.learning_rate = fields.take_or_zero("learning_rate");
  step.grad_norm = fields.take("grad_norm");
  step.tokens = fields.take_whole("tokens");
  step.samples = fields.take_whole("samples");
  step.tokens_per_second = fields.take_or_zero("tokens_per_second");
  step.seconds = fields.take_or_zero("seconds");
  step.mfu = fields.take("mfu");
  step.flops = fields.take_or_zero("flops");
  step.memory_bytes = fields.take_whole("memory_bytes");
  step.time = fields.take_or_zero("time");
  step.extra = fields.rest();
  return step;
}

LoggedEval eval_of(ordered_json line) {
  Fields fields(std::move(line));
  LoggedEval eval;
  eval.step = fields.take_whole("step");
  eval.epoch = fields.take_or_zero("epoch");
  eval.loss = fields.take("eval_loss").value_or(kNan);
  eval.seconds = fields.take_or_zero("eval_runtime");
  eval.tokens_per_second = fields.take_or_zero("eval_tokens_per_second");
  eval.time = fields.take_or_zero("time");
  eval.extra = fields.rest();
  return eval;
}

// {"step": 60, "first_step": 41, "stages": [0, 0], "compute": [0.61, 0.6], "data": ..., "saving": ...,
// "communication": ...}: an array has one number per rank.
RankTable rank_table_of(const ordered_json& line) {
  RankTable table{.first_step = line.at("first_step").get<int64_t>(),
                  .last_step = line.at("step").get<int64_t>(),
                  .ranks = {},
                  .stages = line.at("stages").get<std::vector<int64_t>>()};
  if (table.first_step < 1 || table.steps() < 1) throw std::runtime_error("first_step is after step");
  const auto column = [&](RankActivity activity) {
    auto values = line.at(to_string(activity)).get<std::vector<double>>();
    if (values.size() != table.stages.size()) throw std::runtime_error("the arrays have different lengths");
    return values;
  };
  const std::vector<double> compute = column(RankActivity::compute), data = column(RankActivity::data),
                            saving = column(RankActivity::saving), communication = column(RankActivity::communication);
  for (size_t rank = 0; rank < table.stages.size(); ++rank)
    table.ranks.push_back({compute[rank], data[rank], saving[rank], communication[rank]});
  return table;
}

int64_t step_of_entry(const RankTable& table) { return table.last_step; }
template <typename Entry>
int64_t step_of_entry(const Entry& entry) {
  return entry.step;
}

std::runtime_error invalid_line(const LineReader& lines, const std::string& why) {
  return std::runtime_error(fmt::format("{}:{}: invalid line of metrics: {}", lines.path(), lines.number(), why));
}

// Returns the result of |read| for the next line, nullopt at the end.
template <typename Read>
auto next_entry(LineReader& lines, Read read) {
  using Entry = decltype(read(ordered_json()));
  const std::optional<std::string_view> line = lines.next();
  if (!line) return std::optional<Entry>();
  try {
    return std::optional<Entry>(read(parse_json<ordered_json>(*line, "the line")));
  } catch (const nlohmann::json::exception& error) {
    throw invalid_line(lines, json_reason(error));
  } catch (const std::exception& error) {
    throw invalid_line(lines, one_line(error.what(), 500));
  }
}

template <typename Entry, typename Read>
void read_entries(const std::string& path, Read read, std::vector<Entry>* entries) {
  LineReader lines(path);
  while (std::optional<Entry> entry = next_entry(lines, read)) entries->push_back(std::move(*entry));
}

LoggedSample sample_of_line(const ordered_json& line) {
  return {line.at("step").get<int64_t>(), line.at("prompt").get<std::string>(), line.at("text").get<std::string>()};
}

template <typename Entry>
void keep_until(int64_t last_step, const std::string& path, std::vector<Entry>* entries) {
  std::erase_if(*entries, [&](const Entry& entry) { return step_of_entry(entry) > last_step; });
  std::string text;
  for (const Entry& entry : *entries) text += metrics_line(entry) + "\n";
  if (text != read_if_there(path)) replace_file(path, text);
}

}  // namespace

std::string metrics_line(const LoggedStep& step) {
  Line line;
  line.put("step", step.step);
  line.put("epoch", step.epoch);
  line.put("loss", step.loss);
  line.put("learning_rate", step.learning_rate);
  step.grad_norm ? line.put("grad_norm", *step.grad_norm) : line.put_unknown("grad_norm");
  line.put("tokens", step.tokens);
  if (step.samples > 0) line.put("samples", step.samples);
  line.put("tokens_per_second", step.tokens_per_second);
  line.put("seconds", step.seconds);
  if (step.mfu) line.put("mfu", *step.mfu);
  if (step.flops > 0) line.put("flops", step.flops);
  if (step.memory_bytes > 0) line.put("memory_bytes", step.memory_bytes);
  line.put("time", step.time);
  line.put_all(step.extra);
  return line.text();
}

std::string metrics_line(const LoggedEval& eval) {
  Line line;
  line.put("step", eval.step);
  line.put("epoch", eval.epoch);
  line.put("eval_loss", eval.loss);
  line.put("eval_runtime", eval.seconds);
  line.put("eval_tokens_per_second", eval.tokens_per_second);
  line.put("time", eval.time);
  line.put_all(eval.extra);
  return line.text();
}

std::string metrics_line(const LoggedSample& sample) {
  const ordered_json line = {{"step", sample.step}, {"prompt", sample.prompt}, {"text", sample.text}};
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string metrics_line(const RankTable& table) {
  ordered_json line = {{"step", table.last_step}, {"first_step", table.first_step}, {"stages", table.stages}};
  for (const RankActivity activity : kRankActivities) {
    ordered_json& column = line[to_string(activity)] = ordered_json::array();
    for (const RankTimes& times : table.ranks) column.push_back(std::round(times.of(activity) * 1e6) / 1e6);
  }
  return line.dump();
}

RunHistory read_history(const std::string& folder) {
  RunHistory history;
  const std::string here = folder + "/";
  read_entries(here + kMetricsFile, step_of, &history.steps);
  read_entries(here + kEvalMetricsFile, eval_of, &history.evals);
  read_entries(here + kSamplesFile, sample_of_line, &history.samples);
  read_entries(here + kRankTimesFile, rank_table_of, &history.ranks);
  return history;
}

HistoryReader::HistoryReader(const std::string& folder)
    : steps_(folder + "/" + kMetricsFile), evals_(folder + "/" + kEvalMetricsFile) {}

std::optional<LoggedStep> HistoryReader::next_step() { return next_entry(steps_, step_of); }
std::optional<LoggedEval> HistoryReader::next_eval() { return next_entry(evals_, eval_of); }

void forget_after(int64_t last_step, const std::string& folder, RunHistory* history) {
  keep_until(last_step, folder + "/" + kMetricsFile, &history->steps);
  keep_until(last_step, folder + "/" + kEvalMetricsFile, &history->evals);
  keep_until(last_step, folder + "/" + kSamplesFile, &history->samples);
  keep_until(last_step, folder + "/" + kRankTimesFile, &history->ranks);
}

}  // namespace concord
