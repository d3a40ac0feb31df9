// concord.initialize and concord.parallel in Python: the job of this process, and the functions of its parallel layers.
#pragma once

#include <pybind11/pybind11.h>

namespace concord {

// Adds initialize, finalize and the functions that describe the job.
void bind_job(pybind11::module_& module);

// Adds the functions of core/parallel that trainer/python/concord/parallel.py makes layers of.
void bind_layers(pybind11::module_& module);

}  // namespace concord
