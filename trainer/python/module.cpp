// The extension module concord._core; concord/train.py is the interface for users.
#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>

#include "core/base/config_error.h"
#include "core/models/config.h"
#include "platform/loader/error.h"
#include "trainer/arguments/foreign/foreign.h"
#include "trainer/arguments/table.h"
#include "trainer/cli/program_version.h"
#include "trainer/python/callback.h"
#include "trainer/python/device_binding.h"
#include "trainer/python/functions.h"
#include "trainer/python/group_binding.h"
#include "trainer/python/job_binding.h"
#include "trainer/python/loop.h"
#include "trainer/python/module_chunk.h"
#include "trainer/python/run.h"

namespace concord {
namespace {

namespace py = pybind11;

py::dict dict_of(const NamedValues& values) {
  py::dict result;
  for (const auto& [name, value] : values) result[name.c_str()] = value;
  return result;
}

// Throws the exception of Python, with its traceback, that caused |error|. Returns if there is none. Call with the GIL.
void rethrow_of_python(const std::exception& error) {
  if (const auto* raised = dynamic_cast<const py::error_already_set*>(&error)) throw *raised;
  if (const auto* raised = dynamic_cast<const python_error*>(&error)) {  // in backward
    python_error(*raised).restore();
    throw py::error_already_set();
  }
  const auto* const outer = dynamic_cast<const std::nested_exception*>(&error);
  if (outer == nullptr || outer->nested_ptr() == nullptr) return;
  try {
    outer->rethrow_nested();
  } catch (const std::exception& cause) {
    rethrow_of_python(cause);
  }
}

// |functions| has loop, compute_metrics, compute_loss, parameter_groups and network (a concord._module.Network), or
// None for each.
py::dict train(const std::vector<std::string>& args, const std::vector<py::object>& callbacks,
               const py::dict& functions) {
  EmbeddedOptions options;
  for (const py::object& each : callbacks) options.callbacks.push_back(std::make_shared<PythonCallback>(each));
  const py::object loop = functions["loop"], metrics = functions["compute_metrics"], loss = functions["compute_loss"];
  const py::object network = functions["network"], groups = functions["parameter_groups"];
  if (!loop.is_none()) use_python_loop(loop, &options);
  if (!metrics.is_none()) options.compute_metrics = python_metrics(metrics);
  if (!groups.is_none()) options.multipliers = python_groups(groups);
  if (!loss.is_none()) {
    require_callable(loss, "compute_loss", "two arguments, the logits and the batch");
    options.forward_step = [&](const TrainingArguments& given) { return python_loss(loss, given); };
  }
  if (!network.is_none()) {
    options.use_model = [&](TrainingArguments* given) {
      const py::gil_scoped_acquire gil;
      use_module(network, given);
    };
    options.model = module_provider(network);
  }
  EmbeddedRun run;
  try {
    const py::gil_scoped_release other_threads_run;
    run = train_embedded(args, options);
  } catch (const std::exception& error) {
    rethrow_of_python(error);
    throw;
  }
  py::dict result;
  result["global_step"] = run.output.global_step;
  result["training_loss"] = run.output.training_loss;
  result["metrics"] = dict_of(run.output.metrics);
  result["test_metrics"] = dict_of(run.output.test_metrics);
  result["reason"] = run.output.reason;
  result["stop_signal"] = run.output.stop_signal;
  result["output_dir"] = run.output_dir;
  return result;
}

// Names as Python annotates them.
const char* type_of(const Argument& argument) {
  struct Names {
    const char* operator()(const ArgumentField<bool>&) const { return "bool"; }
    const char* operator()(const ArgumentField<int64_t>&) const { return "int"; }
    const char* operator()(const ArgumentField<double>&) const { return "float"; }
    const char* operator()(const StepsField&) const { return "float"; }
    const char* operator()(const ArgumentField<std::string>&) const { return "str"; }
    const char* operator()(const ArgumentField<std::vector<std::string>>&) const { return "list"; }
    const char* operator()(const ArgumentField<std::map<std::string, std::string>>&) const { return "dict"; }
    const char* operator()(const EnumField<std::string>&) const { return "choice"; }
    const char* operator()(const EnumField<std::vector<std::string>>&) const { return "choices"; }
  };
  return std::visit(Names{}, argument.member);
}

// Every setting, as (name, type, allowed names, help).
py::list settings() {
  py::list rows;
  for (const Argument* each : all_arguments()) {
    py::list allowed;
    for (const std::string_view name : allowed_names(*each)) allowed.append(name);
    rows.append(py::make_tuple(each->name, type_of(*each), allowed, each->help));
  }
  return rows;
}

// The meaning of a setting of another program: (kind, argument or reason, accepted values); None if it is unknown.
py::object foreign_setting(const std::string& name) {
  struct Row {
    py::tuple operator()(const SameArgument& same) const { return py::make_tuple("same", same.argument, py::tuple()); }
    py::tuple operator()(const Converted& into) const { return py::make_tuple("converted", into.as, py::tuple()); }
    py::tuple operator()(const DescribesModel&) const { return py::make_tuple("model", "", py::tuple()); }
    py::tuple operator()(const WithoutEffect& none) const { return py::make_tuple("ignored", none.why, py::tuple()); }
    py::tuple operator()(const NotSupported& refused) const {
      return py::make_tuple("refused", refused.instead, py::cast(refused.neutral));
    }
  };
  const ForeignSetting* setting = find_foreign(name);
  return setting == nullptr ? py::object(py::none()) : std::visit(Row{}, setting->meaning);
}

}  // namespace
}  // namespace concord

PYBIND11_MODULE(_core, module) {
  using namespace concord;
  pybind11::register_exception_translator([](std::exception_ptr error) {
    try {
      std::rethrow_exception(error);
    } catch (const c10::Error& of_libtorch) {
      pybind11::set_error(PyExc_RuntimeError, of_libtorch.what_without_backtrace());
    }
  });
  pybind11::register_exception<ConfigError>(module, "ConfigError", PyExc_ValueError);
  pybind11::register_exception<Error>(module, "Error", PyExc_RuntimeError);
  bind_callback_types(module);
  bind_predicted_sample(module);
  bind_trainer(module);
  bind_platform(module);
  bind_groups(module);
  bind_job(module);
  bind_layers(module);
  module.def("train", &train);
  module.def("settings", &settings);
  module.def("foreign_setting", &foreign_setting);
  // Throws ConfigError unless the text of a config.json describes a model of one of Concord's families.
  module.def("check_model_config", [](const std::string& text) { parse_model_config(text, "config.json"); });
  module.attr("version") = program_version();
}
