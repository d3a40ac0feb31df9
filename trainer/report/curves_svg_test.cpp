#include "trainer/report/curves_svg.h"

#include <gmock/gmock.h>

#include <cmath>
#include <regex>

#include "core/base/config_error.h"

namespace concord {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(CurvesSvg, ACurveGoesFromCornerToCornerOfItsFrame) {
  // From 76 to 876 across; up from 376 to 46, with a twentieth of 330 / 1.1 left above and below.
  const std::string svg = draw_curves({.curves = {{"a", {0, 1, 2}, {0, 1, 2}}}});
  EXPECT_THAT(svg, HasSubstr("d=\"M76.0 361.0L476.0 211.0L876.0 61.0\""));
}

TEST(CurvesSvg, AValueThatIsNotFiniteIsAGap) {
  const std::string svg = draw_curves({.curves = {{"a", {0, 1, 2, 3}, {0, 2, NAN, 0}}}});
  EXPECT_THAT(svg, HasSubstr("d=\"M76.0 361.0L342.7 61.0M876.0 361.0L876.0 361.0\""));
}

TEST(CurvesSvg, EveryCurveHasAColourAWidthAndAName) {
  const std::string svg = draw_curves({.curves = {{"cpu", {0, 1}, {0, 1}}, {"cuda <b>", {0, 1}, {0, 1}}}});
  EXPECT_THAT(svg, HasSubstr("stroke=\"#1f5aa6\" stroke-width=\"3.3\""));
  EXPECT_THAT(svg, HasSubstr("stroke=\"#c46210\" stroke-width=\"1.6\""));
  EXPECT_THAT(svg, HasSubstr(">cuda &lt;b&gt;</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("<b>")));
}

TEST(CurvesSvg, ALevelOutsideOfTheCurvesIsInThePicture) {
  const std::string svg = draw_curves({.curves = {{"a", {0, 1}, {2, 4}}}, .levels = {{"floor", 0}}});
  EXPECT_THAT(svg, HasSubstr("y1=\"361.0\" x2=\"876.0\" y2=\"361.0\" stroke=\"#777\""));
  EXPECT_THAT(svg, HasSubstr(">floor 0</text>"));
}

TEST(CurvesSvg, OneValueIsADotInTheMiddleAndHasOneNumberBelowIt) {
  const std::string svg = draw_curves({.curves = {{"a", {5}, {2}}}});
  EXPECT_THAT(svg, HasSubstr("d=\"M476.0 211.0L476.0 211.0\" fill=\"none\" stroke=\"#1f5aa6\" stroke-width=\"7.0\""));
  const std::regex below("<text x=\"[0-9.]+\" y=\"394.0\"[^>]*>([^<]*)");
  std::vector<std::string> numbers;
  for (std::sregex_iterator at(svg.begin(), svg.end(), below), end; at != end; ++at) numbers.push_back((*at)[1]);
  EXPECT_THAT(numbers, testing::ElementsAre("5"));
}

TEST(CurvesSvg, StepsHaveNoFractionsBetweenThem) {
  EXPECT_THAT(draw_curves({.curves = {{"a", {1, 2, 3}, {10, 20, 40}}}}), Not(HasSubstr(">1.5</text>")));
}

TEST(CurvesSvg, AnythingFlatShortOrTinyIsDrawn) {
  for (const CurvesPicture& picture :
       {CurvesPicture{.curves = {{"flat", {1, 2}, {3, 3}}}}, CurvesPicture{.curves = {{"point", {5}, {0}}}},
        CurvesPicture{.curves = {{"tiny", {0, 1}, {1e-12, 2e-12}}}},
        CurvesPicture{.curves = {{"zero", {0, 1}, {0, 0}}}, .from_zero = true}}) {
    const std::string svg = draw_curves(picture);
    EXPECT_THAT(svg, Not(HasSubstr("nan"))) << picture.curves[0].name;
    EXPECT_THAT(svg, Not(HasSubstr("inf"))) << picture.curves[0].name;
  }
  EXPECT_THROW(draw_curves({.curves = {{"nothing", {0}, {NAN}}}}), ConfigError);
  EXPECT_THROW(draw_curves({}), ConfigError);
}

}  // namespace
}  // namespace concord
