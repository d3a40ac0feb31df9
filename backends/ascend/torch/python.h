// Starts a Python interpreter in a C++ program. torch_npu's wheel links libtorch_python.so, whose functions need a live
// interpreter, and initialises itself by calling its own Python package. Does nothing in a Python program.
#pragma once

#include <string>

namespace concord::ascend::torch_side {

// Which Python packages torch_npu imports.
enum class Packages {
  kImport,  // the real torch and torch_npu: takes some seconds; required on hardware
  kStub,    // empty modules of the same names: for the simulator, which does not need the packages' set-up
};

// Reads CONCORD_ASCEND_PYTHON ("import" or "stub"); without it a simulator gets stubs. Throws std::runtime_error.
Packages choose_packages(bool simulator);

// Loads libpython for the torch in |torch_folder| (.../lib/python3.11/site-packages/torch/lib), starts the interpreter
// and releases its lock, so that any thread can take it. Does nothing if Python already runs.
// Threads: call once per process. Throws std::runtime_error with every path tried and what to install.
void start_python(const std::string& torch_folder, Packages packages);

}  // namespace concord::ascend::torch_side
