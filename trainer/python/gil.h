// Calls that wait, from a thread that may or may not hold the GIL.
#pragma once

#include <pybind11/pybind11.h>

namespace concord {

// Calls |call| without the GIL, so that other Python threads run meanwhile. The thread gets it back if it held it.
template <class Call>
auto without_gil(Call call) {
  if (PyGILState_Check() == 0) return call();
  const pybind11::gil_scoped_release other_threads_run;
  return call();
}

}  // namespace concord
