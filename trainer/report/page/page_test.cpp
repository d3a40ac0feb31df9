#include "trainer/report/page/page.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "trainer/report/summary.h"

namespace concord {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

RunHistory history_of(size_t steps) {
  RunHistory history;
  for (size_t i = 1; i <= steps; ++i) {
    history.steps.push_back({.step = static_cast<int64_t>(i),
                             .loss = 2 + 1.0 / static_cast<double>(i),
                             .learning_rate = 1e-3,
                             .grad_norm = 1.5,
                             .tokens = static_cast<int64_t>(256 * i),
                             .tokens_per_second = 512,
                             .seconds = 0.5,
                             .time = 1e9 + static_cast<double>(i)});
  }
  return history;
}

json data_in(const std::string& page) {
  const std::string open = "id=\"data\">";
  const size_t start = page.find(open) + open.size();
  return json::parse(page.substr(start, page.find("</script>", start) - start));
}

TEST(Page, ShowsSamplesTheLatestFirst) {
  EXPECT_THAT(report_page({}, history_of(1), {}), Not(HasSubstr("Samples")));
  RunHistory history = history_of(1);
  history.samples = {{1, "a <b>", "old"}, {2, "a <b>", "new"}};
  const std::string page = report_page({}, history, {});
  EXPECT_THAT(page, HasSubstr("<tr><td>2</td><td>a &lt;b&gt;</td><td>new</td></tr><tr><td>1</td>"));
}

TEST(Page, HoldsEveryNumberOfTheCurves) {
  RunHistory history = history_of(3);
  history.steps[1].loss = std::nan("");
  history.evals.push_back({.step = 2, .loss = 2.25, .time = 1e9 + 2.5});
  const json data = data_in(report_page({.loss_floor = 1.75}, history, {}));
  EXPECT_EQ(data.at("columns").at("step"), json({1, 2, 3}));
  EXPECT_EQ(data.at("columns").at("loss"), json({3, nullptr, 2.3333333}));
  EXPECT_EQ(data.at("columns").at("tokens"), json({256, 512, 768}));
  EXPECT_EQ(data.at("columns").at("time"), json({0, 1, 2}));
  EXPECT_EQ(data.at("columns").at("mfu"), json({nullptr, nullptr, nullptr}));
  EXPECT_EQ(data.at("evals"), json({{"step", {2}}, {"time", {1.5}}, {"loss", {2.25}}}));
  EXPECT_EQ(data.at("floor"), 1.75);
}

TEST(Page, ShowsTheLoadOfExpertsPerLayer) {
  EXPECT_THAT(report_page({}, history_of(2), {}), Not(HasSubstr("id=\"experts\"")));
  RunHistory history = history_of(2);
  history.steps[1].extra = {{"expert_load_max_layer_3", 1.5},
                            {"expert_load_min_layer_3", 0.25},
                            {"token_drop_rate_layer_3", 0.125},
                            {"load_imbalance", 1.5},
                            {"token_drop_rate", 0.125}};
  const std::string page = report_page({}, history, {});
  EXPECT_THAT(page, HasSubstr("Tokens per expert, step 2"));
  EXPECT_THAT(page, HasSubstr("<tr><td>layer 3</td><td>1.50 of an even share at most, 0.25 at least, 12.50 % dropped"));
  EXPECT_EQ(data_in(page).at("columns").at("load_imbalance"), json({nullptr, 1.5}));
  EXPECT_EQ(data_in(page).at("columns").at("token_drop_rate"), json({nullptr, 0.125}));
}

TEST(Page, HoldsWhatIsLoggedOfPairs) {
  RunHistory history = history_of(2);
  history.steps[1].extra = {{"rewards/chosen", 0.5}, {"rewards/accuracies", 0.75}, {"entropy", 1}};
  history.evals = {{.step = 2, .loss = 2, .extra = {{"eval_rewards/accuracies", 0.625}, {"eval_rewards/margins", 0.25}}}};
  const std::string page = report_page({}, history, {});
  const json data = data_in(page);
  EXPECT_EQ(data.at("columns").at("rewards/chosen"), json({nullptr, 0.5}));
  EXPECT_EQ(data.at("columns").at("rewards/accuracies"), json({nullptr, 0.75}));
  EXPECT_FALSE(data.at("columns").contains("rewards/rejected"));
  EXPECT_EQ(data.at("evals").at("eval_rewards/accuracies"), json::array({0.625}));
  EXPECT_THAT(page, HasSubstr("<b>0.6250</b><span>evaluation accuracy</span>"));
  EXPECT_THAT(page, HasSubstr("<b>0.2500</b><span>evaluation margin</span>"));
}

TEST(Page, ShowsTheSettingsThatDifferAndFoldsTheOthers) {
  RunHistory history;
  history.steps = {{.step = 1, .tokens = 64, .samples = 2, .memory_bytes = 1 << 20}};
  const std::string page = report_page({.configuration = {{"bf16", "true"}, {"fp16", "false"}, {"seed", "42"}},
                                        .changed = {"bf16"},
                                        .parameters = 1'234'000,
                                        .trained_parameters = 56'000,
                                        .opening = {{"data", "a.jsonl: 8 samples"}}},
                                       history, {});
  EXPECT_THAT(page, HasSubstr("<div id=\"configuration\"><table><tr><td>bf16</td><td>true</td></tr></table>"
                              "<details><summary>2 settings with their default values</summary><table><tr><td>fp16</td>"));
  EXPECT_THAT(page, HasSubstr("<tr><td>data</td><td>a.jsonl: 8 samples</td></tr>"));
  for (const char* tile : {"<b>1.23M</b><span>parameters", "<b>56.0k</b><span>trained parameters", "<b>2</b><span>samples",
                           "<b>1.00 MiB</b><span>memory of a rank"})
    EXPECT_THAT(page, HasSubstr(tile));
}

TEST(Page, HoldsTheTimesOfTheRanks) {
  RunHistory history = history_of(20);
  EXPECT_TRUE(data_in(report_page({}, history, {})).at("ranks").at("last").empty());
  history.ranks = {
      {.first_step = 6, .last_step = 10, .ranks = {{.compute = 1}, {.compute = 1}}, .stages = {0, 0}},
      {.first_step = 11, .last_step = 20, .ranks = {{.compute = 1}, {.compute = 1, .data = 0.5}}, .stages = {0, 0}}};
  const json ranks = data_in(report_page({}, history, {})).at("ranks");
  EXPECT_EQ(ranks.at("rank"), json({0, 1}));
  EXPECT_EQ(ranks.at("first"), json({6, 11}));
  EXPECT_EQ(ranks.at("last"), json({10, 20}));
  EXPECT_EQ(ranks.at("relative"), json({{1, 0.6667}, {1, 1.5}}));
  EXPECT_EQ(ranks.at("own"), json({{0.2, 0.1}, {0.2, 0.15}}));
  EXPECT_EQ(ranks.at("cause"), json({{nullptr, nullptr}, {nullptr, 1}}));
  EXPECT_EQ(ranks.at("world"), 2);
}

TEST(Page, WhatAUserWroteIsTextAndNoMarkup) {
  const std::string attack = "</script><script>alert('x')</script>\"&{{DATA}}";
  RunDescription run{
      .output_dir = attack, .title = attack, .configuration = {{attack, attack}}, .layout = {{"a", attack}}};
  const std::string page = report_page(run, history_of(2), {.reason = attack});
  EXPECT_THAT(page, Not(HasSubstr("alert('x')")));
  EXPECT_THAT(page, HasSubstr("&lt;/script&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp;{{DATA}}"));
  const std::string clean = report_page({}, history_of(2), {});
  const auto tags = [](const std::string& text) {
    const std::regex tag("<(/?script)");
    return std::distance(std::sregex_iterator(text.begin(), text.end(), tag), std::sregex_iterator());
  };
  EXPECT_EQ(tags(page), tags(clean));
}

TEST(Page, LoadsNothingFromAnywhere) {
  const std::string page = report_page({}, history_of(2), {});
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  for (const char* word : {"src=", "<link", "@import", "url(", "fetch(", "XMLHttpRequest", "import("})
    EXPECT_THAT(page, Not(HasSubstr(word)));
  const std::regex address("https?://[^\"]*");
  for (auto found = std::sregex_iterator(page.begin(), page.end(), address); found != std::sregex_iterator(); ++found)
    EXPECT_EQ(found->str(), "http://www.w3.org/2000/svg");  // a name, not a place
}

TEST(Page, ThatIsServedLoadsOnlyItself) {
  const std::string page = report_page({}, history_of(2), {}, 2);
  EXPECT_THAT(page,
              HasSubstr("default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
                        "connect-src 'self'\">"));
  EXPECT_THAT(page, HasSubstr("<html lang=\"en\" data-live=\"2\">"));
  EXPECT_THAT(page, HasSubstr("fetch(location.pathname)"));
}

TEST(Page, OfALongRunKeepsTheSpikes) {
  RunHistory history = history_of(100'000);
  history.steps[54'321].loss = 99;
  history.steps[77'777].loss = std::nan("");
  const json columns = data_in(report_page({}, history, {})).at("columns");
  EXPECT_LE(columns.at("step").size(), kMaxPoints);
  EXPECT_GT(columns.at("step").size(), kMaxPoints / 3);
  EXPECT_THAT(columns.at("loss").get<std::vector<json>>(), testing::Contains(json(99)));
  EXPECT_THAT(columns.at("loss").get<std::vector<json>>(), testing::Contains(json(nullptr)));
  EXPECT_EQ(columns.at("step").back(), 100'000);
  EXPECT_TRUE(std::is_sorted(columns.at("step").begin(), columns.at("step").end()));
}

TEST(Page, OfARunWithoutStepsIsStillAPage) {
  EXPECT_TRUE(data_in(report_page({}, {}, {})).at("columns").at("step").empty());
  EXPECT_THAT(summary_text({}, {}, {.reason = "stopped"}), HasSubstr("stopped: no step was done"));
}

TEST(Page, WithOneLoggedStepStatesThatThereIsNoCurve) {
  const RunDescription run;
  EXPECT_THAT(report_page(run, history_of(1), {}),
              HasSubstr("<p id=\"note\">Only step 1 was logged, so there are no curves; logging_steps sets how often steps are logged.</p>"));
  EXPECT_THAT(report_page(run, history_of(2), {}), HasSubstr("<p id=\"note\"></p>"));
  EXPECT_THAT(report_page(run, {}, {}), HasSubstr("<p id=\"note\"></p>"));
}

TEST(Summary, SaysHowItWentWhereTheFilesAreAndWhatIsNext) {
  RunHistory history = history_of(4);
  history.steps[3].loss = 2.75;
  history.evals.push_back({.step = 4, .loss = 2.125});
  const std::string text =
      summary_text({.output_dir = "out", .loss_floor = 1.5}, history,
                   {.reason = "finished", .files = {{"model", "out/model"}}, .next = {"concord probe"}});
  EXPECT_EQ(text,
            "\nfinished: 4 steps, 1.02k tokens in 0:02, 512 tokens/s\n"
            "loss 3.0000 -> 2.7500, lowest 2.3333 at step 3; evaluation 2.1250; floor 1.5000\n"
            "  metrics      out/metrics.jsonl\n"
            "  state        out/trainer_state.json\n"
            "  TensorBoard  tensorboard --logdir out/runs\n"
            "  report       out/report.html\n"
            "  model        out/model\n"
            "  next: concord probe\n");
}

TEST(Summary, CountsStepsThatWereNotLogged) {
  const RunDescription run{.logging_steps = 10};
  const RecentSteps five{.steps = 5, .loss = 3.25, .tokens = 2560, .seconds = 2};
  EXPECT_THAT(summary_text(run, {}, {.reason = "stopped by SIGINT after step 5", .unlogged = five}),
              HasSubstr("\nstopped by SIGINT after step 5: 5 steps, 2.56k tokens in 0:02, 1.28k tokens/s\n"
                        "none logged yet: logging_steps is 10; 3.2500 at step 5\n"));
  EXPECT_THAT(summary_text(run, history_of(4), {.unlogged = five}),
              HasSubstr("finished: 9 steps, 3.58k tokens in 0:04, 896 tokens/s\n"
                        "loss 3.0000 -> 2.2500, lowest 2.2500 at step 4; 3.2500 at step 9\n"));
  EXPECT_THAT(summary_text(run, history_of(1), {}),
              HasSubstr("finished: 1 step, 256 tokens in 0:01, 512 tokens/s\n"
                        "loss 3.0000 at step 1, the only one logged: logging_steps is 10\n"));
}

TEST(Summary, CountsLossesThatWereNotFinite) {
  RunHistory history = history_of(4);
  history.steps[1].loss = history.steps[2].loss = INFINITY;
  EXPECT_THAT(summary_text({}, history, {}), HasSubstr("; 2 not finite"));
  history.steps[2].extra = {{"untrained_iter", 1}};
  EXPECT_THAT(summary_text({}, history, {}), HasSubstr("; 1 not finite"));
}

}  // namespace
}  // namespace concord
