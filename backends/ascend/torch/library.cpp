// libconcordtorch_ascend.so: the libtorch side of the ascend plugin. It loads torch_npu, which comes in two kinds: the
// wheel, which needs a Python interpreter in the process and initialises itself at the first tensor, and the C++ build
// (libtorch_npu), which needs none and is initialised by torch_npu::init_npu. Then the kernels of ops/, which a build
// without libtorch does not have: the references of Concord's operators run without them.
#include <dlfcn.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <stdexcept>
#include <string>

#include "backends/ascend/torch/python.h"
#include "platform/abi/torch.h"

namespace concord::ascend::torch_side {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libtorch_npu.so";
constexpr const char* kOperators = "libconcordtorch_ascend_ops.so";
// c10::Stream::native_handle, by which streams are passed on, works on torch_npu from here on.
constexpr int kMinMajor = 2, kMinMinor = 13;
constexpr const char* kVersions =
    "Concord needs torch_npu 2.13 or later with a torch of the same version (torch_npu 2.13.0 for torch 2.13.0), on "
    "the "
    "CANN that it was built for (CANN 9)";

// Returns a function of CANN's runtime, which the plugin has loaded; null if it is missing.
void* find_in_runtime(const char* name) {
  for (const char* library : {"libascendcl.so", "libacl_rt.so"}) {
    void* const handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    void* const found = handle != nullptr ? dlsym(handle, name) : nullptr;
    if (found != nullptr) return found;
  }
  return nullptr;
}

// Returns the version of |package|, "2.13.0"; "" if it is not installed. Wheels have a version.py, a separate
// libtorch has a build-version.
std::string version_of(const fs::path& package) {
  std::string plain;
  if (std::ifstream(package / "build-version") >> plain) return plain.substr(0, plain.find('+'));
  std::ifstream file(package / "version.py");
  const std::regex line_of_version("__version__ = '([0-9.]+).*");
  std::smatch found;
  for (std::string line; std::getline(file, line);) {
    if (std::regex_match(line, found, line_of_version)) return found[1];
  }
  return {};
}

bool is_too_old(const std::string& version) {
  int major = 0, minor = 0;
  if (std::sscanf(version.c_str(), "%d.%d", &major, &minor) != 2)
    return false;  // unknown: linking will fail if it is too old
  return major < kMinMajor || (major == kMinMajor && minor < kMinMinor);
}

void check_versions(const fs::path& torch) {
  const std::string torch_version = version_of(torch);
  const std::string npu_version = version_of(torch.parent_path() / "torch_npu");
  const std::string& oldest = is_too_old(torch_version) ? torch_version : npu_version;
  if (is_too_old(oldest)) {
    const char* const name = &oldest == &torch_version ? "torch " : "torch_npu ";
    throw std::runtime_error(name + oldest + " is too old for Ascend devices: " + kVersions);
  }
  const auto minor = [](const std::string& version) { return version.substr(0, version.rfind('.')); };
  if (torch_version.empty() || npu_version.empty() || minor(torch_version) == minor(npu_version)) return;
  throw std::runtime_error("torch_npu " + npu_version + " does not match torch " + torch_version + ": " + kVersions);
}

void load(const concord_torch_host& host, const std::string& name) {
  if (const char* words = host.load(host.self, name.c_str()); words != nullptr) {
    throw std::runtime_error(std::string(words) + "\n" + kVersions);
  }
}

// The C++ build alone has this function; DeviceIndex is int8_t. It wants the device that the program uses first.
void initialise_cpp_build() {
  const auto init_npu = reinterpret_cast<void (*)(int8_t)>(dlsym(RTLD_DEFAULT, "_ZN9torch_npu8init_npuEa"));
  if (init_npu == nullptr) return;
  int32_t device = 0;
  const auto get_device = reinterpret_cast<int (*)(int32_t*)>(find_in_runtime("aclrtGetDevice"));
  if (get_device == nullptr || get_device(&device) != 0) device = 0;
  init_npu(static_cast<int8_t>(device));
}

// The folder of this library.
fs::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&initialise_cpp_build), &info) == 0) return {};
  return fs::path(info.dli_fname).parent_path();
}

void open(const concord_torch_host& host) {
  const fs::path folder = host.torch_folder;
  const fs::path torch_python = folder / "libtorch_python.so";
  check_versions(folder.parent_path());
  if (fs::exists(torch_python)) {  // a wheel's torch, so a wheel's torch_npu
    start_python(folder.string(), choose_packages(find_in_runtime("concord_sim_label") != nullptr));
    load(host, torch_python.string());  // torch_npu's own search path does not lead there
  }
  load(host, kLibrary);
  initialise_cpp_build();
  const fs::path operators = own_folder() / kOperators;
  if (fs::exists(operators)) load(host, operators.string());
}

}  // namespace
}  // namespace concord::ascend::torch_side

extern "C" __attribute__((visibility("default"))) const char* concord_torch_library_open(
    const concord_torch_host* host) {
  static std::string words;
  try {
    concord::ascend::torch_side::open(*host);
    return nullptr;
  } catch (const std::exception& error) {
    words = error.what();
    return words.c_str();
  }
}
