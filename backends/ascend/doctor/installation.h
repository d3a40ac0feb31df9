// The installed parts of Ascend's software, and whether they fit together: driver, firmware, CANN with the operators of
// the chips, torch_npu and libtorch. Read from files, so it works without any of them.
#pragma once

#include <string>
#include <vector>

namespace concord::ascend {

// Where to look. Folders in which torch and torch_npu may be: those of Python packages.
struct InstallationPlaces {
  std::string root = "/";   // of the file system
  std::string ascend_home;  // ASCEND_HOME_PATH; "" if it is not set
  std::vector<std::string> packages;
};
// Returns the places of this process: its environment, and the packages of the Python on its PATH.
InstallationPlaces places_of_process();

// Versions; "" if a part was not found.
struct Installation {
  std::string driver, firmware, cann, torch_npu, torch;
  std::vector<std::string> missing_operators = {};  // operators of torch_npu that Concord calls
  int devices = 0;                                  // device files /dev/davinci<N>
  bool readable = true;                             // all of them, by this user
  bool has_kernels = false;                         // CANN's operators
  bool is_sourced = false;                          // CANN's environment is set
};
Installation find_installation(const InstallationPlaces& places);

struct InstallationFinding {
  int kind;  // CONCORD_FINDING_*
  std::string topic, found, advice;
};
// Returns one finding per part, in the order in which they are installed.
std::vector<InstallationFinding> judge(const Installation& found);

}  // namespace concord::ascend
