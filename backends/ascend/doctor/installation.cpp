#include "backends/ascend/doctor/installation.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>

#include "backends/ascend/torch/vendor_operators.h"
#include "platform/abi/doctor.h"

namespace concord::ascend {
namespace {

namespace fs = std::filesystem;

// Returns the value after |key|= in a file of such lines, without quotes; "" if there is none.
std::string value_in(const fs::path& file, const std::string& key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find('=');
    if (at == std::string::npos || at == 0 || line.substr(0, line.find_last_not_of(" \t", at - 1) + 1) != key) continue;
    const size_t begin = line.find_first_not_of(" '\"[", at + 1), end = line.find_last_not_of(" '\"]\r");
    if (begin != std::string::npos && end >= begin) return line.substr(begin, end - begin + 1);
  }
  return {};
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ':');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

std::string setting(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

struct Version {
  int major = -1, minor = -1;  // -1: unknown
  auto operator<=>(const Version&) const = default;
};
Version version_of(const std::string& text) {
  Version version;
  if (std::sscanf(text.c_str(), "%d.%d", &version.major, &version.minor) != 2) return {};
  return version;
}
std::string text_of(const Version& version) {
  return std::to_string(version.major) + "." + std::to_string(version.minor);
}

// The driver that was released with each CANN, by their release notes; newer drivers run older CANNs.
struct Release {
  Version cann, driver;
};
constexpr Release kReleases[] = {
    {{8, 1}, {25, 0}}, {{8, 2}, {25, 2}}, {{8, 3}, {25, 3}}, {{8, 5}, {25, 5}}, {{9, 0}, {25, 5}}};
constexpr Version kOldestCann{8, 1}, kBeyondNewestCann{10, 0}, kOldestTorch{2, 13}, kCannOfTorch{9, 0};

Version driver_of(const Version& cann) {
  Version driver{25, 0};
  for (const Release& each : kReleases) {
    if (each.cann <= cann) driver = each.driver;
  }
  return driver;
}

constexpr const char* kHdk = "install the driver and firmware of one Ascend HDK package (hiascend.com), as root";
constexpr const char* kCann = "install the CANN toolkit 9.x and the kernels of your chip, then `source set_env.sh`";

using Finding = InstallationFinding;

Finding judge_devices(const Installation& i) {
  if (i.devices == 0) {
    return {CONCORD_FINDING_PROBLEM, "devices", "no /dev/davinci0",
            "install the driver, check `npu-smi info`, and in a container pass the devices on"};
  }
  const std::string found = std::to_string(i.devices) + " at /dev/davinci*";
  if (i.readable) return {CONCORD_FINDING_FINE, "devices", found, ""};
  return {CONCORD_FINDING_PROBLEM, "devices", found + ", which this user cannot open",
          "add the user to the group that owns them: sudo usermod -aG HwHiAiUser $USER"};
}

Finding judge_driver(const Installation& i) {
  if (i.driver.empty()) return {CONCORD_FINDING_PROBLEM, "driver", "not installed", kHdk};
  const Version found = version_of(i.driver), cann = version_of(i.cann);
  const Version needed = driver_of(cann.major < 0 ? kCannOfTorch : cann);
  if (found.major < 0 || found >= needed) return {CONCORD_FINDING_FINE, "driver", i.driver, ""};
  return {CONCORD_FINDING_PROBLEM, "driver", i.driver + ", older than CANN " + (cann.major < 0 ? "9" : i.cann),
          "install Ascend HDK " + text_of(needed) + " or later, driver and firmware"};
}

Finding judge_firmware(const Installation& i) {
  if (i.firmware.empty()) return {CONCORD_FINDING_PROBLEM, "firmware", "not installed", kHdk};
  return {CONCORD_FINDING_FINE, "firmware", i.firmware, ""};
}

Finding judge_cann(const Installation& i) {
  const Version found = version_of(i.cann);
  if (i.cann.empty()) return {CONCORD_FINDING_PROBLEM, "CANN", "not installed", kCann};
  if (found < kOldestCann || found >= kBeyondNewestCann) {
    return {CONCORD_FINDING_PROBLEM, "CANN", i.cann + ", but 8.1 to 9.x is supported", kCann};
  }
  if (!i.is_sourced) {
    return {CONCORD_FINDING_PROBLEM, "CANN", i.cann + ", but ASCEND_HOME_PATH is not set",
            "source /usr/local/Ascend/ascend-toolkit/set_env.sh in every shell"};
  }
  if (found < kCannOfTorch) {
    return {CONCORD_FINDING_PROBLEM, "CANN", i.cann + ", which the plugin can use, but no torch_npu that Concord can",
            kCann};
  }
  return {CONCORD_FINDING_FINE, "CANN", i.cann, ""};
}

Finding judge_kernels(const Installation& i) {
  if (i.has_kernels) return {CONCORD_FINDING_FINE, "CANN's kernels", "installed", ""};
  return {CONCORD_FINDING_PROBLEM, "CANN's kernels", "not installed",
          "install CANN's kernels (opp) package for your chip, of the toolkit's version"};
}

// libtorch and torch_npu have to be of the same minor version.
Finding judge_torch(const Installation& i) {
  const Version found = version_of(i.torch);
  if (i.torch.empty()) {
    return {CONCORD_FINDING_NOTE, "torch", "not found in the Python packages",
            "`./run build` installs it; else torch 2.13.0 in the Python on the PATH"};
  }
  if (found < kOldestTorch) {
    return {CONCORD_FINDING_PROBLEM, "torch", i.torch + ", older than 2.13", "pip install torch==2.13.0"};
  }
  return {CONCORD_FINDING_FINE, "torch", i.torch, ""};
}

Finding judge_torch_npu(const Installation& i) {
  const Version found = version_of(i.torch_npu), torch = version_of(i.torch);
  const std::string wanted = torch >= kOldestTorch ? text_of(torch) + ".0" : "2.13.0";
  const std::string advice = "pip install torch_npu==" + wanted + ", for torch " + wanted;
  if (i.torch_npu.empty()) {
    return {i.torch.empty() ? CONCORD_FINDING_NOTE : CONCORD_FINDING_PROBLEM, "torch_npu", "not installed", advice};
  }
  if (found < kOldestTorch) {
    return {CONCORD_FINDING_PROBLEM, "torch_npu", i.torch_npu + ", older than 2.13", advice};
  }
  if (torch.major >= 0 && found != torch) {
    return {CONCORD_FINDING_PROBLEM, "torch_npu", i.torch_npu + " does not match torch " + i.torch, advice};
  }
  return {CONCORD_FINDING_FINE, "torch_npu", i.torch_npu, ""};
}

Finding judge_operators(const Installation& i) {
  const size_t all = std::size(kVendorOperators), missing = i.missing_operators.size();
  const std::string found = std::to_string(all - missing) + " of the " + std::to_string(all) + " that Concord calls";
  if (missing == 0) return {CONCORD_FINDING_FINE, "operators", found, ""};
  std::string names;
  for (const std::string& name : i.missing_operators) names += (names.empty() ? "" : ", ") + name;
  return {CONCORD_FINDING_NOTE, "operators", found + "; missing: " + names,
          "training works with Concord's references, which are slower; a newer torch_npu may have them"};
}

// A wheel's version.py, or the build-version of a separate libtorch.
std::string version_of_package(const std::vector<std::string>& packages, const std::string& name) {
  for (const std::string& folder : packages) {
    std::string plain;
    if (std::ifstream(fs::path(folder) / name / "build-version") >> plain) return plain;
    const std::string version = value_in(fs::path(folder) / name / "version.py", "__version__");
    if (!version.empty()) return version;
  }
  return {};
}

// Searches the library's file for the schemas of the operators; loading it would need CANN.
std::vector<std::string> operators_missing_in(const std::vector<std::string>& packages) {
  for (const std::string& folder : packages) {
    std::ifstream file(fs::path(folder) / "torch_npu/lib/libtorch_npu.so", std::ios::binary);
    if (!file) continue;
    const std::string library{std::istreambuf_iterator<char>(file), {}};
    std::vector<std::string> missing;
    for (const char* name : kVendorOperators) {
      if (library.find(std::string(name) + "(") == std::string::npos) missing.emplace_back(name);
    }
    return missing;
  }
  return {};
}

void find_devices(const fs::path& root, Installation* out_found) {
  std::error_code ignored;
  for (const fs::directory_entry& each : fs::directory_iterator(root / "dev", ignored)) {
    const std::string name = each.path().filename();
    if (!name.starts_with("davinci") || name.find_first_not_of("0123456789", 7) != std::string::npos) continue;
    if (name.size() == 7) continue;
    ++out_found->devices;
    if (access(each.path().c_str(), R_OK | W_OK) != 0) out_found->readable = false;
  }
}

void find_cann(const fs::path& home, Installation* out_found) {
  for (const char* file : {"ascend_toolkit_install.info", "x86_64-linux/ascend_toolkit_install.info",
                           "aarch64-linux/ascend_toolkit_install.info", "runtime/version.info"}) {
    for (const char* key : {"version", "Version"}) {
      if (out_found->cann.empty()) out_found->cann = value_in(home / file, key);
    }
  }
  std::error_code ignored;
  out_found->has_kernels = fs::exists(home / "opp/built-in/op_impl/ai_core/tbe/kernel", ignored);
}

}  // namespace

InstallationPlaces places_of_process() {
  InstallationPlaces places;
  places.ascend_home = setting("ASCEND_HOME_PATH");
  places.packages = split(setting("PYTHONPATH"));
  for (const std::string& folder : split(setting("LD_LIBRARY_PATH"))) {  // .../torch_npu/lib
    places.packages.push_back(fs::path(folder).parent_path().parent_path());
  }
  std::error_code ignored;
  for (const std::string& folder : split(setting("PATH"))) {
    for (const auto& each : fs::directory_iterator(fs::path(folder).parent_path() / "lib", ignored)) {
      if (each.path().filename().string().starts_with("python3."))
        places.packages.push_back(each.path() / "site-packages");
    }
  }
  return places;
}

Installation find_installation(const InstallationPlaces& places) {
  const fs::path root = places.root;
  Installation found;
  find_devices(root, &found);
  fs::path ascend = value_in(root / "etc/ascend_install.info", "Driver_Install_Path_Param");
  ascend = ascend.empty() ? root / "usr/local/Ascend" : root / ascend.relative_path();
  found.driver = value_in(ascend / "driver/version.info", "Version");
  found.firmware = value_in(ascend / "firmware/version.info", "Version");
  found.is_sourced = !places.ascend_home.empty();
  find_cann(found.is_sourced ? fs::path(places.ascend_home) : ascend / "ascend-toolkit/latest", &found);
  found.torch = version_of_package(places.packages, "torch");
  found.torch_npu = version_of_package(places.packages, "torch_npu");
  found.missing_operators = operators_missing_in(places.packages);
  return found;
}

std::vector<InstallationFinding> judge(const Installation& found) {
  std::vector<Finding> findings{judge_devices(found), judge_driver(found), judge_firmware(found), judge_cann(found),
                                judge_kernels(found), judge_torch(found),  judge_torch_npu(found)};
  if (!found.torch_npu.empty()) findings.push_back(judge_operators(found));
  return findings;
}

}  // namespace concord::ascend
