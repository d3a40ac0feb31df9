#include "trainer/python/callback.h"

#include <pybind11/stl.h>

#include <array>

#include "core/base/config_error.h"

namespace concord {
namespace {

namespace py = pybind11;

constexpr std::array kMethods = {"on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_step_begin",
                                 "on_step_end",    "on_log",       "on_evaluate",    "on_save"};

py::dict metrics_of(const EvalReport& report) {
  py::dict metrics;
  metrics["step"] = report.step;
  metrics["epoch"] = report.epoch;
  metrics["eval_loss"] = report.loss;
  for (const auto& [name, value] : report.extra) metrics[name.c_str()] = value;
  return metrics;
}

}  // namespace

py::dict logs_of(const TrainerState& state, const StepReport& report) {
  py::dict logs;
  logs["step"] = report.step;
  logs["epoch"] = report.epoch;
  logs["loss"] = report.loss;
  logs["learning_rate"] = report.learning_rate;
  if (report.grad_norm) logs["grad_norm"] = *report.grad_norm;
  logs["tokens"] = state.tokens;
  if (report.seconds > 0) logs["tokens_per_second"] = static_cast<double>(report.tokens) / report.seconds;
  for (const auto& [name, value] : report.extra) logs[name.c_str()] = value;
  return logs;
}

PythonCallback::PythonCallback(py::object target) : target_(std::move(target)) {
  for (const char* name : kMethods) {
    if (py::hasattr(target_, name)) methods_.insert(name);
  }
  if (methods_.empty()) {
    std::string names;
    for (const char* name : kMethods) names += (names.empty() ? "" : ", ") + std::string(name);
    throw ConfigError("a callback is " + py::repr(target_).cast<std::string>() +
                      ", which has none of the methods of a callback: " + names);
  }
}

// Python gets copies of |state| and |control|, since it may keep them; changes of the latter are copied back.
template <class... Args>
void PythonCallback::call(const char* name, const TrainerState& state, TrainerControl* control, const Args&... args) {
  if (!methods_.contains(name)) return;
  const py::gil_scoped_acquire gil;
  if (control == nullptr) {
    target_.attr(name)(state);
    return;
  }
  const py::object requests = py::cast(*control);
  target_.attr(name)(state, requests, args()...);
  *control = requests.cast<TrainerControl>();
}

void PythonCallback::on_train_begin(const TrainingArguments&, const TrainerState& state, TrainerControl& control) {
  call("on_train_begin", state, &control);
}

void PythonCallback::on_train_end(const TrainerState& state, const FinishReport&) {
  call("on_train_end", state, nullptr);
}

void PythonCallback::on_epoch_begin(const TrainerState& state, TrainerControl& control) {
  call("on_epoch_begin", state, &control);
}

void PythonCallback::on_epoch_end(const TrainerState& state, TrainerControl& control) {
  call("on_epoch_end", state, &control);
}

void PythonCallback::on_step_begin(const TrainerState& state, TrainerControl& control) {
  call("on_step_begin", state, &control);
}

void PythonCallback::on_step_end(const TrainerState& state, TrainerControl& control) {
  call("on_step_end", state, &control);
}

void PythonCallback::on_log(const TrainerState& state, const StepReport& report, TrainerControl& control) {
  call("on_log", state, &control, [&] { return logs_of(state, report); });
}

void PythonCallback::on_evaluate(const TrainerState& state, const EvalReport& report, TrainerControl& control) {
  call("on_evaluate", state, &control, [&] { return metrics_of(report); });
}

void PythonCallback::on_save(const TrainerState& state, const std::string& folder, TrainerControl& control) {
  call("on_save", state, &control, [&] { return folder; });
}

void bind_callback_types(py::module_& module) {
  py::class_<TrainerState>(module, "TrainerState")
      .def_readonly("global_step", &TrainerState::global_step)
      .def_readonly("max_steps", &TrainerState::max_steps)
      .def_readonly("epoch", &TrainerState::epoch)
      .def_readonly("num_train_epochs", &TrainerState::num_train_epochs)
      .def_readonly("tokens", &TrainerState::tokens)
      .def_readonly("is_world_process_zero", &TrainerState::is_world_process_zero)
      .def_property_readonly("best_metric", [](const TrainerState& state) { return state.best.metric; })
      .def_property_readonly("best_global_step", [](const TrainerState& state) { return state.best.step; })
      .def_property_readonly("best_model_checkpoint", [](const TrainerState& state) { return state.best.checkpoint; });
  py::class_<TrainerControl>(module, "TrainerControl")
      .def_readwrite("should_training_stop", &TrainerControl::should_training_stop)
      .def_readwrite("should_log", &TrainerControl::should_log)
      .def_readwrite("should_evaluate", &TrainerControl::should_evaluate)
      .def_readwrite("should_save", &TrainerControl::should_save);
}

}  // namespace concord
