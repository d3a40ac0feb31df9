#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/base/config_error.h"
#include "core/schedule/draw.h"

namespace concord {
namespace {

constexpr double kRow = 24;  // pixels
constexpr double kLeft = 72;
constexpr double kRight = 96;
constexpr double kMargin = 12;  // on the right of texts
constexpr double kTitle = 30;
constexpr double kAxis = 26;
constexpr double kLegend = 34;
constexpr double kCell = 15;  // width of the shortest computation, unless the drawing gets too wide
constexpr double kWidest = 24'000;
constexpr double kReadable = 11;  // narrower cells have no number
// Character widths relative to the font size, for the widest font that may replace Helvetica or Arial (DejaVu Sans): a
// layout for that one fits with any.
constexpr double kPlainWidth = 0.64;
constexpr double kBoldWidth = 0.7;
constexpr double kTitleSize = 14;
constexpr double kLegendSize = 12;
constexpr std::string_view kRestOfLegend = "idle; lighter: later chunks; numbers: micro-batches";

struct Colour {
  int red, green, blue;
};

// Distinguishable in print and for colour-blind readers.
constexpr std::array<Colour, 4> kColours = {{{31, 90, 166}, {0, 121, 92}, {196, 98, 16}, {128, 78, 150}}};
constexpr std::array<std::string_view, 4> kMeanings = {"F forward", "B backward", "I input gradient",
                                                       "W weight gradient"};

Colour colour_of(ActionKind kind, int chunk, int chunks) {
  const Colour base = kColours[static_cast<size_t>(kind)];
  const double white = chunks == 1 ? 0.25 : 0.62 * chunk / (chunks - 1);
  const auto mixed = [&](int value) { return static_cast<int>(std::lround(value + (255 - value) * white)); };
  return {mixed(base.red), mixed(base.green), mixed(base.blue)};
}

std::string hex(const Colour& colour) {
  return fmt::format("#{:02x}{:02x}{:02x}", colour.red, colour.green, colour.blue);
}

// Black on light, white on dark; the weights are perceptual luminance.
std::string_view text_colour(const Colour& colour) {
  return 0.299 * colour.red + 0.587 * colour.green + 0.114 * colour.blue > 140 ? "#000" : "#fff";
}

std::string text_at(double x, double y, std::string_view attributes, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes, text);
}

template <typename Visit>
void each_computation(const Panel& panel, Visit visit) {
  for (size_t rank = 0; rank < panel.schedule->ranks.size(); ++rank) {
    for (size_t i = 0; i < panel.schedule->ranks[rank].size(); ++i) {
      const Action& action = panel.schedule->ranks[rank][i];
      if (is_compute(action.kind)) visit(rank, action, panel.simulation->times[rank][i]);
    }
  }
}

struct Scale {
  double pixels;   // per unit of time
  double longest;  // makespan
};

Scale common_scale(const std::vector<Panel>& panels) {
  double shortest = std::numeric_limits<double>::infinity();
  double longest = 0;
  int64_t computations = 0;
  for (const Panel& panel : panels) {
    each_computation(panel, [&](size_t, const Action&, const ActionTime& time) {
      shortest = std::min(shortest, time.end - time.start);
      ++computations;
    });
    longest = std::max(longest, panel.simulation->makespan);
  }
  if (computations > kMaxDrawn) {
    throw ConfigError(fmt::format(
        "a drawing of {} computations is not readable; the limit is {}, so use fewer ranks or micro-batches",
        computations, kMaxDrawn));
  }
  return {std::min(kCell / shortest, kWidest / longest), longest};
}

std::string title_of(const Panel& panel) {
  const Schedule& schedule = *panel.schedule;
  const Simulation& simulation = *panel.simulation;
  const int64_t peak = *std::max_element(simulation.peak_activations.begin(), simulation.peak_activations.end());
  return fmt::format(
      "{}, {} ranks{}, {} micro-batches: makespan {:g}, bubble {:.1f} %, idle within a rank {:.1f} %, at most {} "
      "activations{}",
      schedule.kind, schedule.pp, schedule.vpp > 1 ? fmt::format(" of {} chunks", schedule.vpp) : "",
      schedule.microbatches, simulation.makespan, 100 * simulation.bubble_ratio, 100 * simulation.device_idle_ratio,
      peak, schedule.vpp > 1 ? " of a chunk" : "");
}

std::string boxes(const Panel& panel, const Scale& scale, double top) {
  const Schedule& schedule = *panel.schedule;
  std::vector<int> chunk_of(schedule.rank_of_stage.size());
  std::vector<int> chunks(schedule.ranks.size(), 0);
  for (size_t stage = 0; stage < chunk_of.size(); ++stage)
    chunk_of[stage] = chunks[static_cast<size_t>(schedule.rank_of_stage[stage])]++;
  std::string svg;
  each_computation(panel, [&](size_t rank, const Action& action, const ActionTime& time) {
    const double x = kLeft + time.start * scale.pixels;
    const double y = top + static_cast<double>(rank) * kRow;
    const double width = (time.end - time.start) * scale.pixels;
    const Colour colour = colour_of(action.kind, chunk_of[static_cast<size_t>(action.stage)], schedule.vpp);
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"><title>{} from {:g} to "
        "{:g}</title></rect>\n",
        x, y + 1, std::max(width - 0.6, 0.3), kRow - 2, hex(colour), to_string(action), time.start, time.end);
    if (width >= kReadable) {
      const double size = action.microbatch < 100 ? 10 : 7.5;
      svg += text_at(x + width / 2, y + kRow / 2 + 3.5,
                     fmt::format("class=\"m\" font-size=\"{}\" fill=\"{}\"", size, text_colour(colour)),
                     std::to_string(action.microbatch));
    }
  });
  return svg;
}

// Ticks at 1, 2 or 5 times a power of ten, about a hundred pixels apart.
double tick_step(const Scale& scale) {
  const double wanted = 100 / scale.pixels;
  const double power = std::pow(10, std::floor(std::log10(wanted)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= wanted) return factor * power;
  }
  return 10 * power;
}

std::string axis(const Panel& panel, const Scale& scale, double bottom) {
  std::string svg;
  const double step = tick_step(scale);
  for (int i = 0; i * step <= panel.simulation->makespan; ++i) {
    const double x = kLeft + i * step * scale.pixels;
    svg += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#666\"/>\n", x,
                       bottom, bottom + 5);
    svg += text_at(x, bottom + 16, "class=\"m\" font-size=\"10\" fill=\"#444\"", fmt::format("{:g}", i * step));
  }
  return svg;
}

std::string draw_panel(const Panel& panel, const Scale& scale, double top) {
  const double rows_top = top + kTitle;
  const double length = panel.simulation->makespan * scale.pixels;
  std::string svg =
      text_at(kLeft, top + 19, fmt::format("font-size=\"{}\" font-weight=\"bold\"", kTitleSize), title_of(panel));
  for (int rank = 0; rank < panel.schedule->pp; ++rank) {
    const double y = rows_top + rank * kRow;
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"#e6e6e6\"/>\n", kLeft,
                       y + 1, length, kRow - 2);
    svg += text_at(8, y + kRow / 2 + 4, "font-size=\"12\"", fmt::format("rank {}", rank));
    svg += text_at(kLeft + length + 8, y + kRow / 2 + 4, "font-size=\"11\" fill=\"#444\"",
                   fmt::format("holds {}", panel.simulation->peak_activations[static_cast<size_t>(rank)]));
  }
  return svg + boxes(panel, scale, rows_top) + axis(panel, scale, rows_top + panel.schedule->pp * kRow);
}

// Only the kinds and chunks that occur. |end| is its right end.
std::string legend(const std::vector<Panel>& panels, double top, double* end) {
  std::array<int, 4> chunks{};
  for (const Panel& panel : panels) {
    each_computation(panel, [&](size_t, const Action& action, const ActionTime&) {
      int& most = chunks[static_cast<size_t>(action.kind)];
      most = std::max(most, panel.schedule->vpp);
    });
  }
  const std::string size = fmt::format("font-size=\"{}\"", kLegendSize);
  std::string svg;
  double x = kLeft;
  for (size_t kind = 0; kind < kMeanings.size(); ++kind) {
    for (int chunk = 0; chunk < chunks[kind]; ++chunk, x += 14) {
      svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\" fill=\"{}\"/>\n", x, top,
                         hex(colour_of(static_cast<ActionKind>(kind), chunk, chunks[kind])));
    }
    if (chunks[kind] == 0) continue;
    svg += text_at(x + 6, top + 11.5, size, kMeanings[kind]);
    x += 24 + kPlainWidth * kLegendSize * static_cast<double>(kMeanings[kind].size());
  }
  svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"14\" height=\"14\" fill=\"#e6e6e6\"/>\n", x, top);
  *end = x + 20 + kPlainWidth * kLegendSize * static_cast<double>(kRestOfLegend.size());
  return svg + text_at(x + 20, top + 11.5, size, kRestOfLegend);
}

}  // namespace

std::string draw_svg(const std::vector<Panel>& panels) {
  const Scale scale = common_scale(panels);
  double width = kLeft + scale.longest * scale.pixels + kRight;
  std::string body;
  double y = 8;
  for (const Panel& panel : panels) {
    body += draw_panel(panel, scale, y);
    width = std::max(width, kLeft + kBoldWidth * kTitleSize * static_cast<double>(title_of(panel).size()) + kMargin);
    y += kTitle + panel.schedule->pp * kRow + kAxis;
  }
  double legend_end = 0;
  body += legend(panels, y + 10, &legend_end);
  width = std::max(width, legend_end + kMargin);
  y += kLegend;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"Helvetica, Arial, sans-serif\">\n<style>.m{{text-anchor:middle}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{2}</svg>\n",
      width, y, body);
}

}  // namespace concord
