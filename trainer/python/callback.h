// Callbacks written in Python.
#pragma once

#include <pybind11/pybind11.h>

#include <set>
#include <string>

#include "trainer/callbacks.h"

namespace concord {

// Calls the methods of a Python object that are named like those of TrainerCallback; others do nothing. The training
// thread does not hold the GIL and takes it for each call. An exception of a method becomes error_already_set, which
// ends the run like any exception of a callback, and is raised again by the binding with its traceback.
class PythonCallback : public TrainerCallback {
 public:
  // Holds a reference to |target|. Create and destroy with the GIL. Throws ConfigError if it has none of the methods.
  explicit PythonCallback(pybind11::object target);

  void on_train_begin(const TrainingArguments& arguments, const TrainerState& state, TrainerControl& control) override;
  void on_train_end(const TrainerState& state, const FinishReport& report) override;
  void on_epoch_begin(const TrainerState& state, TrainerControl& control) override;
  void on_epoch_end(const TrainerState& state, TrainerControl& control) override;
  void on_step_begin(const TrainerState& state, TrainerControl& control) override;
  void on_step_end(const TrainerState& state, TrainerControl& control) override;
  void on_log(const TrainerState& state, const StepReport& report, TrainerControl& control) override;
  void on_evaluate(const TrainerState& state, const EvalReport& report, TrainerControl& control) override;
  void on_save(const TrainerState& state, const std::string& folder, TrainerControl& control) override;

 private:
  template <class... Args>
  void call(const char* name, const TrainerState& state, TrainerControl* control, const Args&... args);

  pybind11::object target_;
  std::set<std::string> methods_;
};

// A line of the log with the names of metrics.jsonl. Call with the GIL.
pybind11::dict logs_of(const TrainerState& state, const StepReport& report);

// Adds TrainerState and TrainerControl to the module.
void bind_callback_types(pybind11::module_& module);

}  // namespace concord
