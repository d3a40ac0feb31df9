// Options of `concord operators`. Needs no libtorch.
#pragma once

#include <string>

namespace concord {

struct OperatorsArguments {
  std::string platform;    // empty: the default one
  std::string filter;      // only operators whose name contains it
  std::string out;         // a JSON file; empty: none
  bool all_sizes = true;   // false: only the smallest real size of each operator
  bool overwrite = false;  // |out| may be replaced
};

}  // namespace concord
