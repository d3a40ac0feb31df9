// The Python interpreter inside a C++ program. torch_npu's wheel links libtorch_python.so, whose functions want a
// live interpreter, and initialises itself by calling its own Python package. A program that is Python already is
// left alone.
#pragma once

#include <string>

namespace concord::ascend::torch_side {

// The Python packages that torch_npu finds.
enum class Packages {
  kImport,  // the real torch and torch_npu: some seconds, the only right way on hardware
  kStub,    // empty modules of the same names: for the simulator, where the packages' own set-up does nothing needed
};

// Reads CONCORD_ASCEND_PYTHON ("import" or "stub"); without it a simulator gets stubs. Throws std::runtime_error.
Packages choose_packages(bool simulator);

// Loads libpython for the torch in |torch_folder| (.../lib/python3.11/site-packages/torch/lib), starts it and releases
// its lock, so that any thread can take it. Does nothing if Python runs already.
// Threads: once per process. Throws std::runtime_error with every place tried and what to install.
void start_python(const std::string& torch_folder, Packages packages);

}  // namespace concord::ascend::torch_side
