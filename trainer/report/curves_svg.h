// Curves as a picture: an SVG document for docs and reports. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace concord {

struct Curve {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;  // as many; a value that is not finite is a gap
};

struct CurvesPicture {
  std::string title = {};
  std::string x_label = {};
  std::string y_label = {};
  std::vector<Curve> curves = {};
  std::vector<std::pair<std::string, double>> levels = {};  // lines across, dashed
  bool from_zero = false;                                   // the lowest value shown is 0
};

// Earlier curves are drawn wider, so that coinciding curves are all visible. Throws ConfigError if there is
// nothing to draw.
std::string draw_curves(const CurvesPicture& picture);

}  // namespace concord
