#include "core/schedule/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "core/base/config_error.h"
#include "core/schedule/passes.h"
#include "core/schedule/schedules.h"

namespace concord {
namespace {

using ::testing::HasSubstr;

size_t count_of(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

std::string grid(const ScheduleRequest& request, const ScheduleCosts& costs, size_t width) {
  const Schedule schedule = complete_schedule(make_schedule(request));
  return draw_grid(schedule, simulate(schedule, costs), width);
}

TEST(Draw, TheGridHasACellForEachUnitOfTime) {
  EXPECT_EQ(grid({.kind = "1f1b", .pp = 2, .microbatches = 2}, {}, 0),
            "rank 0 | F0 F1  .  . B0  =  . B1  =\n"
            "rank 1 |  . F0 B0  = F1 B1  =  .  .\n");
}

TEST(Draw, ALongGridIsBrokenIntoBlocks) {
  EXPECT_EQ(grid({.kind = "1f1b", .pp = 2, .microbatches = 2}, {}, 24),
            "from time 0\n"
            "rank 0 | F0 F1  .  . B0\n"
            "rank 1 |  . F0 B0  = F1\n"
            "\n"
            "from time 5\n"
            "rank 0 |  =  . B1  =\n"
            "rank 1 | B1  =  .  .\n");
  EXPECT_EQ(count_of(grid({.kind = "1f1b", .pp = 2, .microbatches = 2}, {}, 1), "from time"),
            9u);  // one cell per block
}

TEST(Draw, ChunksAreToldApartByTheirStage) {
  EXPECT_THAT(grid({.kind = "zb-v", .pp = 2, .microbatches = 4}, {}, 0), HasSubstr("rank 0 | 0F0 0F1 0F2 3F0 3I0 3W0"));
}

TEST(Draw, AGridThatNobodyCanReadIsNotDrawn) {
  EXPECT_THAT(grid({.kind = "1f1b", .pp = 64, .microbatches = 1024}, {}, 0), HasSubstr("the grid would have"));
  EXPECT_THAT(grid({.kind = "1f1b", .pp = 2, .microbatches = 2}, {.forward = 1e-9}, 0),
              HasSubstr("the grid would have"));
}

TEST(Draw, ThePictureHasABoxForEachComputation) {
  const Schedule schedule = complete_schedule(make_schedule({.kind = "zb-v", .pp = 4, .microbatches = 8}));
  const Simulation simulation = simulate(schedule, {});
  const std::string svg = draw_svg({{&schedule, &simulation}});
  EXPECT_EQ(count_of(svg, "<title>"), 4u * 8 * 2 * 3);
  EXPECT_THAT(svg, HasSubstr("<title>7F0 from 7 to 8</title>"));
  EXPECT_THAT(svg, HasSubstr("bubble 5.9 %"));
  EXPECT_EQ(count_of(svg, "B backward"), 0u);  // the schedule has none, and so the legend
}

// The texts of |svg| that are left-aligned, and their right ends in DejaVu Sans, which is wider than the requested
// fonts and the usual fallback on machines without them.
struct PlacedText {
  std::string text;
  double begin = 0, y = 0, end = 0;
};
std::vector<PlacedText> placed_texts(const std::string& svg) {
  std::vector<PlacedText> texts;
  const std::regex pattern(R"re(<text x="([\d.]+)" y="([\d.]+)" font-size="([\d.]+)"([^>]*)>([^<]*)</text>)re");
  for (std::sregex_iterator at(svg.begin(), svg.end(), pattern), end; at != end; ++at) {
    const double em = (*at)[4].str().find("bold") != std::string::npos ? 0.69 : 0.6;  // average width per character
    const double begin = std::stod((*at)[1]);
    texts.push_back({(*at)[5], begin, std::stod((*at)[2]),
                     begin + em * std::stod((*at)[3]) * static_cast<double>((*at)[5].length())});
  }
  return texts;
}

TEST(Draw, TextsAreNotCutOffOrDrawnOverInAWideFont) {
  for (const char* kind : {"1f1b", "zb-v", "interleaved"}) {
    ScheduleRequest request{.kind = kind, .pp = 2, .microbatches = 4};
    if (request.kind == "interleaved") request.vpp = 2;
    const Schedule schedule = complete_schedule(make_schedule(request));
    const Simulation simulation = simulate(schedule, {});
    const std::string svg = draw_svg({{&schedule, &simulation}});
    const double width = std::stod(svg.substr(svg.find("width=\"") + 7));
    const std::vector<PlacedText> texts = placed_texts(svg);
    ASSERT_GT(texts.size(), 5u);
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_LE(texts[i].end, width) << kind << ": " << texts[i].text;
      if (i + 1 == texts.size() || texts[i + 1].y != texts[i].y) continue;
      EXPECT_LE(texts[i].end, texts[i + 1].begin) << kind << ": " << texts[i].text;
    }
  }
}

TEST(Draw, PanelsShareOneScale) {
  const Schedule first = complete_schedule(make_schedule({.kind = "1f1b", .pp = 2, .microbatches = 2}));
  const Schedule second = complete_schedule(make_schedule({.kind = "gpipe", .pp = 2, .microbatches = 8}));
  const Simulation first_run = simulate(first, {});
  const Simulation second_run = simulate(second, {});
  const std::string svg = draw_svg({{&first, &first_run}, {&second, &second_run}});
  ASSERT_EQ(first_run.makespan, 9);
  ASSERT_EQ(second_run.makespan, 27);
  // The background of a row is as long as the step: a unit of time is 15 pixels.
  EXPECT_EQ(count_of(svg, "width=\"135.0\""), 2u);
  EXPECT_EQ(count_of(svg, "width=\"405.0\""), 2u);
}

TEST(Draw, APictureThatNobodyCanReadIsRefused) {
  const Schedule schedule = make_schedule({.kind = "gpipe", .pp = 64, .microbatches = 1024});
  const Simulation simulation = simulate(schedule, {});
  EXPECT_THROW(draw_svg({{&schedule, &simulation}}), ConfigError);
}

}  // namespace
}  // namespace concord
