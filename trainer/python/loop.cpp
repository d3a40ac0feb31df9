#include "trainer/python/loop.h"

#include <pybind11/stl.h>

#include <optional>

#include "core/base/config_error.h"
#include "trainer/checkpoint/output_folder.h"
#include "trainer/python/callback.h"
#include "trainer/python/functions.h"

namespace concord {
namespace {

namespace py = pybind11;

// Keeps the last line of the log.
class LastLog : public TrainerCallback {
 public:
  void on_log(const TrainerState&, const StepReport& report, TrainerControl&) override { report_ = report; }

  const std::optional<StepReport>& report() const { return report_; }

 private:
  std::optional<StepReport> report_;
};

// A Trainer as Python sees it. Every method but state releases the GIL while it computes.
class PythonTrainer {
 public:
  PythonTrainer(Trainer& trainer, const LastLog& log) : trainer_(&trainer), log_(log) {}

  // The loop has returned: the trainer is about to be destroyed.
  void close() { trainer_ = nullptr; }

  // Returns the line of the log of this step, only its number if it is not logged, and None after the last step.
  py::object train_step() {
    bool has_step = false;
    run([&](Trainer& trainer) { has_step = trainer.step(); });
    if (!has_step) return py::none();
    const TrainerState& now = state();
    if (log_.report() && log_.report()->step == now.global_step) return logs_of(now, *log_.report());
    py::dict logs;
    logs["step"] = now.global_step;
    return logs;
  }

  py::dict evaluate() {
    NamedValues metrics;
    run([&](Trainer& trainer) { metrics = trainer.evaluate().metrics; });
    py::dict result;
    for (const auto& [name, value] : metrics) result[name.c_str()] = value;
    return result;
  }

  std::string save() {
    run([](Trainer& trainer) { trainer.save_checkpoint(); });
    return checkpoint_folder(trainer_->plan().arguments.output.dir, state().global_step).string();
  }

  void save_model(const std::string& folder) {
    run([&](Trainer& trainer) { trainer.save_model(folder); });
  }

  const TrainerState& state() const { return open().state(); }

 private:
  Trainer& open() const {
    if (trainer_ == nullptr) {
      throw ConfigError(
          "the run of this Trainer is over; use it only in the function given to concord.train(loop=...)");
    }
    return *trainer_;
  }

  template <class Call>
  void run(Call call) const {
    Trainer& trainer = open();
    const py::gil_scoped_release other_threads_run;
    call(trainer);
  }

  Trainer* trainer_;
  const LastLog& log_;
};

}  // namespace

void use_python_loop(const py::object& function, EmbeddedOptions* options) {
  require_callable(function, "loop", "one argument, the Trainer");
  const auto log = std::make_shared<LastLog>();
  options->callbacks.push_back(log);
  options->loop = [&function, log](Trainer& trainer) {
    const py::gil_scoped_acquire gil;
    const auto wrapper = std::make_shared<PythonTrainer>(trainer, *log);
    struct Close {
      PythonTrainer& trainer;
      ~Close() { trainer.close(); }
    } const close{*wrapper};
    function(wrapper);
  };
}

void bind_trainer(py::module_& module) {
  py::class_<PythonTrainer, std::shared_ptr<PythonTrainer>>(module, "Trainer")
      .def("train_step", &PythonTrainer::train_step)
      .def("evaluate", &PythonTrainer::evaluate)
      .def("save", &PythonTrainer::save)
      .def("save_model", &PythonTrainer::save_model)
      .def_property_readonly("state", [](const PythonTrainer& trainer) { return TrainerState(trainer.state()); });
}

}  // namespace concord
