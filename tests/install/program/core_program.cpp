// Prints libtorch's device for the platform that the environment names.
#include <cstdio>
#include <exception>
#include <string>

#include "core/torch/device.h"

int main() {
  try {
    const concord::Platform platform = concord::current_platform();
    const std::string device = concord::torch_device(platform, 0).str();
    std::printf("%s: libtorch's device is %s\n", std::string(platform.name()).c_str(), device.c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
