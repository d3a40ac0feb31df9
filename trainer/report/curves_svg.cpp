#include "trainer/report/curves_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "core/base/config_error.h"
#include "trainer/report/page/page.h"

namespace concord {
namespace {

constexpr double kWidth = 900;
constexpr double kHeight = 460;
constexpr double kLeft = 76;
constexpr double kRight = 24;
constexpr double kTop = 46;
constexpr double kBottom = 84;
constexpr double kThinnest = 1.6;
constexpr double kDot = 7;      // a curve with a single value
constexpr double kWider = 1.7;  // ratio of a curve's width to the next one's

// Distinguishable in print and for colour-blind readers; the same as in schedule drawings.
constexpr std::array<std::string_view, 6> kColours = {"#1f5aa6", "#c46210", "#00795c", "#804e96", "#b3a000", "#5c6670"};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  double length() const { return high - low; }
};

bool is_whole(double value) { return std::trunc(value) == value; }

struct Frame {
  Range x, y;
  bool whole_x = true;  // steps and tokens are integers

  double left_of(double value) const {
    const double share = x.length() == 0 ? 0.5 : (value - x.low) / x.length();
    return kLeft + share * (kWidth - kLeft - kRight);
  }
  double top_of(double value) const {
    return kHeight - kBottom - (value - y.low) / y.length() * (kHeight - kTop - kBottom);
  }
};

Frame frame_of(const CurvesPicture& picture) {
  Frame frame;
  for (const Curve& curve : picture.curves) {
    for (size_t i = 0; i < curve.x.size(); ++i) {
      if (!std::isfinite(curve.y[i])) continue;
      frame.x.add(curve.x[i]);
      frame.whole_x &= is_whole(curve.x[i]);
      frame.y.add(curve.y[i]);
    }
  }
  if (!std::isfinite(frame.x.low)) throw ConfigError("nothing to draw: no curve has a finite value");
  for (const auto& [name, value] : picture.levels) frame.y.add(value);
  if (picture.from_zero) frame.y.add(0);
  const double margin = frame.y.length() == 0 ? std::max(std::abs(frame.y.high), 1.0) * 0.1 : frame.y.length() * 0.05;
  frame.y.high += margin;
  if (!picture.from_zero) frame.y.low -= margin;
  return frame;
}

// About |count| ticks at 1, 2 or 5 times a power of ten; at the value itself if there is only one.
std::vector<double> ticks_of(const Range& range, double count) {
  if (range.length() == 0) return {range.low};
  const double wanted = range.length() / count;
  const double power = std::pow(10, std::floor(std::log10(wanted)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= wanted) step = factor * power;
  }
  std::vector<double> ticks;
  const auto last = static_cast<int64_t>(std::floor(range.high / step));
  for (auto i = static_cast<int64_t>(std::ceil(range.low / step)); i <= last; ++i)
    ticks.push_back(static_cast<double>(i) * step);
  return ticks;
}

std::string text_at(double x, double y, std::string_view attributes, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes, html_escaped(text));
}

std::string line_at(double x1, double y1, double x2, double y2, std::string_view attributes) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2,
                     attributes);
}

std::string axes(const CurvesPicture& picture, const Frame& frame) {
  const double bottom = kHeight - kBottom;
  std::string svg;
  for (const double tick : ticks_of(frame.y, 6)) {
    const double y = frame.top_of(tick);
    svg += line_at(kLeft, y, kWidth - kRight, y, "stroke=\"#e3e6ea\"");
    svg += text_at(kLeft - 8, y + 4, "text-anchor=\"end\" fill=\"#444\"", fmt::format("{:.6g}", tick));
  }
  for (const double tick : ticks_of(frame.x, 8)) {
    if (frame.whole_x && !is_whole(tick)) continue;
    svg +=
        text_at(frame.left_of(tick), bottom + 18, "text-anchor=\"middle\" fill=\"#444\"", fmt::format("{:.6g}", tick));
  }
  svg += line_at(kLeft, bottom, kWidth - kRight, bottom, "stroke=\"#666\"");
  svg += text_at((kLeft + kWidth - kRight) / 2, bottom + 38, "text-anchor=\"middle\" fill=\"#444\"", picture.x_label);
  svg += text_at(
      18, (kTop + bottom) / 2,
      fmt::format("text-anchor=\"middle\" fill=\"#444\" transform=\"rotate(-90 18 {:.1f})\"", (kTop + bottom) / 2),
      picture.y_label);
  return svg + text_at(kLeft, 24, "font-size=\"15\" font-weight=\"bold\"", picture.title);
}

// A value between two gaps is a separate path, which round caps turn into a dot.
std::string path_of(const Curve& curve, const Frame& frame) {
  std::string path;
  const auto is_there = [&](size_t i) { return i < curve.x.size() && std::isfinite(curve.y[i]); };
  for (size_t i = 0; i < curve.x.size(); ++i) {
    if (!is_there(i)) continue;
    const bool pen_down = i > 0 && is_there(i - 1);
    const double x = frame.left_of(curve.x[i]), y = frame.top_of(curve.y[i]);
    path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", x, y);
    if (!pen_down && !is_there(i + 1)) path += fmt::format("L{:.1f} {:.1f}", x, y);
  }
  return path;
}

double width_of(const CurvesPicture& picture, size_t curve) {
  const double width = kThinnest + kWider * static_cast<double>(picture.curves.size() - 1 - curve);
  const std::vector<double>& values = picture.curves[curve].y;
  const auto there = std::count_if(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
  return there == 1 ? std::max(width, kDot) : width;
}

std::string legend(const CurvesPicture& picture) {
  std::string svg;
  double x = kLeft;
  const double y = kHeight - 20;
  const auto entry = [&](std::string_view name, const std::string& stroke) {
    svg += line_at(x, y, x + 22, y, stroke);
    svg += text_at(x + 28, y + 4, "fill=\"#222\"", name);
    x += 44 + 7.7 * static_cast<double>(name.size());  // enough for the widest font in the list
  };
  for (size_t i = 0; i < picture.curves.size(); ++i) {
    entry(picture.curves[i].name,
          fmt::format("stroke=\"{}\" stroke-width=\"{:.1f}\"", kColours[i % kColours.size()], width_of(picture, i)));
  }
  for (const auto& [name, value] : picture.levels)
    entry(fmt::format("{} {:.6g}", name, value), "stroke=\"#777\" stroke-width=\"1.5\" stroke-dasharray=\"6 4\"");
  return svg;
}

}  // namespace

std::string draw_curves(const CurvesPicture& picture) {
  const Frame frame = frame_of(picture);
  std::string body = axes(picture, frame);
  for (const auto& [name, value] : picture.levels) {
    body += line_at(kLeft, frame.top_of(value), kWidth - kRight, frame.top_of(value),
                    "stroke=\"#777\" stroke-width=\"1.5\" stroke-dasharray=\"6 4\"");
  }
  for (size_t i = 0; i < picture.curves.size(); ++i) {
    body += fmt::format(
        "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:.1f}\" stroke-linejoin=\"round\" "
        "stroke-linecap=\"round\"><title>{}</title></path>\n",
        path_of(picture.curves[i], frame), kColours[i % kColours.size()], width_of(picture, i),
        html_escaped(picture.curves[i].name));
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{2}{3}</svg>\n",
      kWidth, kHeight, body, legend(picture));
}

}  // namespace concord
