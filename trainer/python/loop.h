// A loop written in Python: concord.train(loop=function).
#pragma once

#include <pybind11/pybind11.h>

#include "trainer/python/run.h"

namespace concord {

// Adds to |options| the loop |function|, which gets a concord.Trainer that is valid until it returns, and what that
// needs. |function| must outlive the run. Call with the GIL; the training thread takes it for the loop and releases it
// for each step. Throws ConfigError if it cannot be called.
void use_python_loop(const pybind11::object& function, EmbeddedOptions* options);

// Adds Trainer to the module.
void bind_trainer(pybind11::module_& module);

}  // namespace concord
