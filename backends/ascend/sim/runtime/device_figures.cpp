#include "backends/ascend/sim/runtime/device_figures.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include "backends/ascend/sim/runtime/settings.h"
#include "platform/sdk/failure.hpp"

namespace concord::ascend::sim {

using sdk::text;

// Cube and memory: the figures that are published for the 910B. Vector: 48 vector cores that read or write 256 bytes
// per cycle at 1.8 GHz. A launch takes some microseconds of the host.
const char* const kDevice910b = R"(name = 910B
memory_bytes_per_second = 1.6e12
cube_flops_per_second = 3.2e14
vector_bytes_per_second = 2.2e13
launch_seconds = 5e-6
)";

double DeviceFigures::microseconds(int64_t launches, int64_t bytes, double product_flops) const {
  const auto moved = static_cast<double>(bytes);
  const double work = std::max(
      {moved / memory_bytes_per_second, moved / vector_bytes_per_second, product_flops / cube_flops_per_second});
  return 1e6 * (static_cast<double>(launches) * launch_seconds + work);
}

std::string parse_device_figures(const std::string& text_of_file, DeviceFigures* out_figures) {
  DeviceFigures figures;
  std::map<std::string, double*> missing = {{"memory_bytes_per_second", &figures.memory_bytes_per_second},
                                            {"cube_flops_per_second", &figures.cube_flops_per_second},
                                            {"vector_bytes_per_second", &figures.vector_bytes_per_second},
                                            {"launch_seconds", &figures.launch_seconds}};
  std::istringstream lines(text_of_file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, equals, value, rest;
    if (!(words >> name)) continue;
    if (!(words >> equals >> value) || equals != "=" || (words >> rest)) {
      return text("the line '%s' is not of the form name = value", line.c_str());
    }
    if (name == "name") {
      figures.name = value;
      continue;
    }
    const auto field = missing.find(name);
    if (field == missing.end()) return text("'%s' is unknown, or given twice", name.c_str());
    char* end = nullptr;
    *field->second = std::strtod(value.c_str(), &end);
    if (*end != '\0' || !(*field->second > 0)) {
      return text("%s is '%s'; it must be a number above 0", name.c_str(), value.c_str());
    }
    missing.erase(field);
  }
  if (figures.name.empty()) return "'name' is missing";
  if (!missing.empty()) return text("'%s' is missing", missing.begin()->first.c_str());
  *out_figures = figures;
  return "";
}

const DeviceFigures& device_figures() {
  static const DeviceFigures& figures = *[] {
    auto* const made = new DeviceFigures;  // never destroyed: used until the process ends
    const std::string& path = settings().device_file;
    std::string content = kDevice910b;
    if (!path.empty()) {
      std::ifstream file(path);
      content.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    const std::string wrong = parse_device_figures(content, made);
    if (wrong.empty()) return made;
    std::fprintf(stderr, "[sim-npu] CONCORD_SIM_NPU_DEVICE_FILE is '%s': %s\n", path.c_str(), wrong.c_str());
    std::exit(2);
  }();
  return figures;
}

}  // namespace concord::ascend::sim
