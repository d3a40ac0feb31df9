// Joins a job, of one process unless started by a launcher, and prints libtorch's device for its platform.
#include <cstdio>
#include <exception>
#include <string>

#include "core/mesh/initialize.h"

int main() {
  try {
    const concord::ParallelContext& job = concord::initialize({});
    const std::string name(job.platform().name());
    std::printf("%s: libtorch's device is %s\n", name.c_str(), job.torch_device().str().c_str());
    concord::finalize();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
