// Draws curves as an SVG document for docs and reports. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace concord {

struct Curve {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;  // same number; values that are not finite are gaps
};

struct CurvesPicture {
  std::string title = {};
  std::string x_label = {};
  std::string y_label = {};
  std::vector<Curve> curves = {};
  std::vector<std::pair<std::string, double>> levels = {};  // dashed horizontal lines
  bool from_zero = false;                                   // the y axis starts at 0
};

// Draws earlier curves wider, so that coinciding curves are all visible. Throws ConfigError if there is nothing to
// draw.
std::string draw_curves(const CurvesPicture& picture);

}  // namespace concord
