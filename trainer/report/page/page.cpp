#include "trainer/report/page/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <stdexcept>

#include "trainer/report/page/page_template.h"
#include "trainer/report/rank_heat_map.h"
#include "trainer/report/summary.h"

namespace concord {
namespace {

// Metrics that the page draws if they are logged.
constexpr const char* kDrawnMetrics[] = {
    "load_imbalance",     "token_drop_rate", "rewards/chosen", "rewards/rejected", "rewards/margins",
    "rewards/accuracies", "mean_reward",     "margin",         "accuracy",         "mean_token_accuracy"};
constexpr const char* kDrawnEvaluations[] = {"eval_rewards/margins", "eval_rewards/accuracies", "eval_margin",
                                             "eval_accuracy"};

std::string rows_of(const NamedTexts& texts) {
  std::string rows;
  for (const auto& [name, value] : texts)
    rows += fmt::format("<tr><td>{}</td><td>{}</td></tr>", html_escaped(name), html_escaped(value));
  return rows.empty() ? "<tr><td>nothing</td><td></td></tr>" : rows;
}

// Returns the latest samples first, at most kMaxSamples; samples.jsonl has all of them.
std::string samples_of(const RunHistory& history) {
  constexpr size_t kMaxSamples = 200;
  if (history.samples.empty()) return "";
  std::string rows;
  for (size_t i = history.samples.size(); i-- > 0 && history.samples.size() - i <= kMaxSamples;) {
    const LoggedSample& sample = history.samples[i];
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>", sample.step, html_escaped(sample.prompt),
                        html_escaped(sample.text));
  }
  return fmt::format(
      "<section class=\"tables\"><div class=\"card\"><div><h2>Samples</h2></div><table id=\"samples\">"
      "{}</table></div></section>\n",
      rows);
}

// The settings that are not the defaults, and the others folded.
std::string configuration_of(const RunDescription& run) {
  NamedTexts changed, others;
  for (const auto& entry : run.configuration) (run.changed.contains(entry.first) ? changed : others).push_back(entry);
  std::string text = fmt::format("<table>{}</table>", rows_of(changed));
  if (others.empty()) return text;
  return text + fmt::format("<details><summary>{} settings with their default values</summary><table>{}</table></details>",
                            others.size(), rows_of(others));
}

std::string tiles_of(const RunDescription& run, const RunHistory& history) {
  std::string tiles;
  for (const auto& [name, value] : headline_figures(run, history))
    tiles += fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>", html_escaped(value), html_escaped(name));
  return tiles;
}

std::string note_of(const RunHistory& history) {
  if (history.steps.size() != 1) return "";
  return fmt::format(
      "Only step {} was logged, so there are no curves; logging_steps sets how often steps are logged.",
      history.steps.front().step);
}

// NaN counts as the highest loss.
bool is_higher(double loss, double than) { return !std::isnan(than) && (std::isnan(loss) || loss > than); }

// Returns the last step of each interval and the one with the highest loss, in order.
std::vector<const LoggedStep*> drawn_steps(const std::vector<LoggedStep>& steps) {
  std::vector<const LoggedStep*> drawn;
  const size_t stretch = steps.size() <= kMaxPoints ? 1 : (2 * steps.size() + kMaxPoints - 1) / kMaxPoints;
  for (size_t start = 0; start < steps.size(); start += stretch) {
    const size_t last = std::min(start + stretch, steps.size()) - 1;
    size_t highest = start;
    for (size_t i = start; i <= last; ++i) {
      if (is_higher(steps[i].loss, steps[highest].loss)) highest = i;
    }
    if (highest != last) drawn.push_back(&steps[highest]);
    drawn.push_back(&steps[last]);
  }
  return drawn;
}

std::string number_json(double value, int digits = 8) {
  return std::isfinite(value) ? fmt::format("{:.{}g}", value, digits) : "null";
}

template <typename Entries, typename Value>
std::string column(const char* name, const Entries& entries, Value value) {
  std::string text = fmt::format("\"{}\":[", name);
  for (size_t i = 0; i < entries.size(); ++i) text.append(i == 0 ? "" : ",").append(number_json(value(entries[i])));
  return text + "]";
}

template <typename Value>
std::string matrix(const char* name, const RankHeatMap& map, Value value) {
  std::string text = fmt::format("\"{}\":[", name);
  for (size_t row = 0; row < map.cells.size(); ++row) {
    text += row == 0 ? "[" : ",[";
    for (size_t i = 0; i < map.cells[row].size(); ++i)
      text.append(i == 0 ? "" : ",").append(number_json(value(map.cells[row][i]), 4));
    text += "]";
  }
  return text + "]";
}

std::string heat_json(const RankHeatMap& map) {
  using Column = RankHeatMap::Column;
  using Cell = RankHeatMap::Cell;
  const std::string parts[] = {
      column("rank", map.ranks, [](int64_t rank) { return static_cast<double>(rank); }),
      column("first", map.columns, [](const Column& column) { return static_cast<double>(column.first_step); }),
      column("last", map.columns, [](const Column& column) { return static_cast<double>(column.last_step); }),
      matrix("relative", map, [](const Cell& cell) { return cell.relative; }),
      matrix("own", map, [](const Cell& cell) { return cell.own_seconds; }),
      matrix("cause", map, [](const Cell& cell) { return cell.cause ? static_cast<double>(*cell.cause) : NAN; })};
  return fmt::format("{{{},\"world\":{}}}", fmt::join(parts, ","), map.world);
}

template <typename Entry>
double extra_of(const Entry& entry, const std::string& name) {
  for (const auto& [each, value] : entry.extra) {
    if (each == name) return value;
  }
  return NAN;
}

// Returns those curves of |names| that |entries| have.
template <typename Entry>
std::string extra_columns(std::span<const char* const> names, const std::vector<const Entry*>& entries) {
  std::string columns;
  for (const char* name : names) {
    const auto value = [name](const Entry* entry) { return extra_of(*entry, name); };
    if (std::ranges::any_of(entries, [&](const Entry* entry) { return std::isfinite(value(entry)); }))
      columns += column(name, entries, value) + ",";
  }
  return columns;
}

// Returns the experts of each layer in the last log line that has any.
std::string experts_of(const RunHistory& history) {
  constexpr std::string_view kFullest = "expert_load_max_layer_";
  for (size_t i = history.steps.size(); i-- > 0;) {
    const LoggedStep& step = history.steps[i];
    NamedTexts layers;
    for (const auto& [name, value] : step.extra) {
      if (!name.starts_with(kFullest)) continue;
      const std::string layer = name.substr(kFullest.size());
      std::string text = fmt::format("{:.2f} of an even share at most, {:.2f} at least", value,
                                     extra_of(step, "expert_load_min_layer_" + layer));
      const double dropped = extra_of(step, "token_drop_rate_layer_" + layer);
      if (std::isfinite(dropped)) text += fmt::format(", {:.2f} % dropped", 100 * dropped);
      layers.emplace_back("layer " + layer, text);
    }
    if (layers.empty()) continue;
    return fmt::format(
        "<section class=\"tables\"><div class=\"card\"><div><h2>Tokens per expert, step {}</h2></div><table "
        "id=\"experts\">{}</table></div></section>\n",
        step.step, rows_of(layers));
  }
  return "";
}

// Only numbers and fixed names, so nothing in it can close the script element.
std::string data_json(const RunDescription& run, const RunHistory& history) {
  const std::vector<const LoggedStep*> steps = drawn_steps(history.steps);
  using Step = const LoggedStep*;
  const std::string columns[] = {column("step", steps, [](Step step) { return static_cast<double>(step->step); }),
                                 column("tokens", steps, [](Step step) { return static_cast<double>(step->tokens); }),
                                 column("loss", steps, [](Step step) { return step->loss; }),
                                 column("learning_rate", steps, [](Step step) { return step->learning_rate; }),
                                 column("grad_norm", steps, [](Step step) { return step->grad_norm.value_or(NAN); }),
                                 column("tokens_per_second", steps, [](Step step) { return step->tokens_per_second; }),
                                 column("mfu", steps, [](Step step) { return step->mfu.value_or(NAN); })};
  const double begin = history.steps.empty() ? 0 : history.steps.front().time;  // relative times need fewer digits
  const std::string evals[] = {
      column("step", history.evals, [](const LoggedEval& eval) { return static_cast<double>(eval.step); }),
      column("time", history.evals, [&](const LoggedEval& eval) { return eval.time - begin; }),
      column("loss", history.evals, [](const LoggedEval& eval) { return eval.loss; })};
  std::vector<const LoggedEval*> all_evals;
  for (const LoggedEval& eval : history.evals) all_evals.push_back(&eval);
  const std::string time = column("time", steps, [&](Step step) { return step->time - begin; });
  return fmt::format("{{\"columns\":{{{}{},{}}},\"evals\":{{{}{}}},\"floor\":{},\"ranks\":{}}}",
                     extra_columns(std::span<const char* const>(kDrawnMetrics), steps), fmt::join(columns, ","), time,
                     extra_columns(std::span<const char* const>(kDrawnEvaluations), all_evals), fmt::join(evals, ","), number_json(run.loss_floor.value_or(NAN)),
                     heat_json(rank_heat_map(history.ranks)));
}

// Substituted text is not searched for names again.
std::string filled(std::string_view page, const std::map<std::string_view, std::string>& values) {
  std::string text;
  for (;;) {
    const size_t open = page.find("{{");
    if (open == std::string_view::npos) return text.append(page);
    const size_t close = page.find("}}", open);
    const auto value = values.find(page.substr(open + 2, close - open - 2));
    if (value == values.end()) throw std::logic_error("the page has a placeholder without a value");
    text.append(page.substr(0, open)).append(value->second);
    page.remove_prefix(close + 2);
  }
}

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string escaped;
  for (const char letter : text) {
    switch (letter) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\'': escaped += "&#39;"; break;
      default: escaped += letter;
    }
  }
  return escaped;
}

std::string report_page(const RunDescription& run, const RunHistory& history, const FinishReport& end,
                        int refresh_seconds) {
  const bool is_live = refresh_seconds > 0;
  return filled(kPageTemplate, {{"LIVE", is_live ? fmt::format(" data-live=\"{}\"", refresh_seconds) : ""},
                                {"CONNECT", is_live ? "; connect-src 'self'" : ""},
                                {"REFRESH", is_live ? kPageRefresh : ""},
                                {"TITLE", html_escaped(run.title)},
                                {"REASON", html_escaped(end.reason)},
                                {"WHERE", html_escaped(run.output_dir)},
                                {"TILES", tiles_of(run, history)},
                                {"NOTE", fmt::format("<p id=\"note\">{}</p>", note_of(history))},
                                {"EXPERTS", experts_of(history)},
                                {"SAMPLES", samples_of(history)},
                                {"LAYOUT", rows_of(run.layout)},
                                {"RUN", rows_of(run.opening)},
                                {"CONFIGURATION", configuration_of(run)},
                                {"DATA", data_json(run, history)}});
}

}  // namespace concord
