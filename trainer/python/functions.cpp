#include "trainer/python/functions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "core/base/config_error.h"
#include "core/mesh/job_environment.h"

namespace concord {
namespace {

namespace py = pybind11;
using at::Tensor;

void check_loss_is_replaceable(const TrainingArguments& a) {
  const auto refuse = [](const std::string& given, const std::string& why) {
    throw ConfigError(fmt::format("compute_loss with {}: {}; remove one of them", given, why));
  };
  const ModelOptions& options = a.model_options;
  if (a.preference.learns_pairs()) refuse("stage dpo or rm", "their losses are of pairs, not of tokens");
  if (a.job.tensor_model_parallel_size > 1) {
    refuse(fmt::format("tensor_model_parallel_size {}", a.job.tensor_model_parallel_size),
           "a rank has a part of the logits only");
  }
  if (options.mtp.num_layers > 0) refuse("mtp_num_layers", "the losses of MTP layers belong to the model's own loss");
  if (options.label_smoothing_factor > 0) refuse("label_smoothing_factor", "it belongs to the model's own loss");
  if (options.z_loss_coeff > 0) refuse("z_loss_coeff", "it belongs to the model's own loss");
  if (options.loss_chunk_size > 0) refuse("loss_chunk_size", "it needs the logits of all tokens together");
}

// The forward step of python_loss.
class PythonLoss {
 public:
  PythonLoss(const py::object& function, const TrainingArguments& arguments)
      : function_(&function), arguments_(arguments) {}

  PassOutput operator()(ModelChunk& chunk, const Tensor& hidden, const MicroBatch& batch, const PassOptions& options) {
    if (!chunk.is_last()) return chunk.forward(hidden, batch, options);
    // Layers that are recomputed in backward have a copy of the observer.
    const auto kept = std::make_shared<Tensor>();
    PassOptions observed = options;
    observed.observer = [kept, given = options.observer](const std::string& part, const Tensor& output) {
      if (given) given(part, output);
      if (part == "logits") *kept = output;
    };
    PassOutput output = chunk.forward(hidden, batch, observed);
    const Tensor logits_sbv = std::exchange(*kept, Tensor());
    const auto own = [&](const Tensor& x) { return chunk.own_tokens(x, batch).to(logits_sbv.device()); };
    output.value = losses(logits_sbv.transpose(0, 1), own(batch.input_ids), own(batch.labels));
    return output;
  }

 private:
  Tensor losses(const Tensor& logits_bsv, const Tensor& ids_bs, const Tensor& labels_bs) {
    if (vocabulary_ == 0) {
      vocabulary_ = plan_model(resolve_arguments(arguments_, read_job_environment().world)).config.vocab_size;
    }
    const Tensor result = call(logits_bsv.narrow(-1, 0, vocabulary_), ids_bs, labels_bs);
    const Tensor losses_bs = result.scalar_type() == at::kDouble ? result : result.to(at::kFloat);
    return losses_bs.masked_fill(labels_bs.eq(kIgnoredLabel), 0).contiguous();
  }

  Tensor call(const Tensor& logits_bsv, const Tensor& ids_bs, const Tensor& labels_bs) const {
    const py::gil_scoped_acquire gil;
    py::dict batch;
    batch["input_ids"] = ids_bs;
    batch["labels"] = labels_bs;
    const py::object result = (*function_)(logits_bsv, batch);
    const auto must = [&](const std::string& given) {
      return ConfigError(
          fmt::format("compute_loss returned {}; must return a loss per token, a floating-point tensor [{}] "
                      "computed from the logits",
                      given, fmt::join(labels_bs.sizes(), ", ")));
    };
    if (!THPVariable_Check(result.ptr())) throw must(py::repr(result).cast<std::string>());
    const auto losses = result.cast<Tensor>();
    if (!losses.is_floating_point() || losses.sizes() != labels_bs.sizes()) {
      throw must(
          fmt::format("a tensor [{}] of {}", fmt::join(losses.sizes(), ", "), c10::toString(losses.scalar_type())));
    }
    if (logits_bsv.requires_grad() && !losses.requires_grad()) throw must("a tensor without gradient");
    return losses;
  }

  const py::object* function_;
  TrainingArguments arguments_;
  int64_t vocabulary_ = 0;  // 0: not known yet
};

}  // namespace

void require_callable(const py::object& function, const std::string& name, const std::string& arguments) {
  if (PyCallable_Check(function.ptr()) != 0) return;
  throw ConfigError(
      fmt::format("{} is {}; must be a function of {}", name, py::repr(function).cast<std::string>(), arguments));
}

ComputeMetrics python_metrics(const py::object& function) {
  require_callable(function, "compute_metrics", "one argument, the list of samples");
  return [&function](const std::vector<PredictedSample>& samples) {
    const py::gil_scoped_acquire gil;
    const py::object result = function(samples);
    if (!py::isinstance<py::dict>(result)) {
      throw ConfigError(fmt::format("compute_metrics returned {}; must return a dict of numbers",
                                    py::repr(result).cast<std::string>()));
    }
    NamedValues metrics;
    for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(result)) {
      metrics.emplace_back(py::str(name), py::float_(py::reinterpret_borrow<py::object>(value)));
    }
    return metrics;
  };
}

ForwardStep python_loss(const py::object& function, const TrainingArguments& arguments) {
  check_loss_is_replaceable(arguments);
  return PythonLoss(function, arguments);
}

Multipliers python_groups(const py::object& function) {
  require_callable(function, "parameter_groups", "two arguments, the name and the shape of a parameter");
  return [&function](const Parameter& parameter) {
    std::vector<int64_t> shape;
    for (const ShardSpec::Dim& dim : parameter.spec.dims) shape.push_back(dim.size);
    GroupMultipliers multipliers;
    const std::map<std::string, double*, std::less<>> known = {{"lr", &multipliers.lr},
                                                               {"weight_decay", &multipliers.weight_decay}};
    const py::gil_scoped_acquire gil;
    const py::object result = function(parameter.spec.name, py::tuple(py::cast(shape)));
    if (result.is_none()) return multipliers;
    const auto refuse = [&] {
      throw ConfigError(
          fmt::format("parameter_groups returned {} for {}; must return None or a dict of multipliers >= 0: "
                      "lr, weight_decay",
                      py::repr(result).cast<std::string>(), parameter.spec.name));
    };
    if (!py::isinstance<py::dict>(result)) refuse();
    for (const auto& [name, value] : py::reinterpret_borrow<py::dict>(result)) {
      const auto field = known.find(py::str(name).cast<std::string>());
      if (field == known.end() || !PyNumber_Check(value.ptr())) refuse();
      *field->second = py::float_(py::reinterpret_borrow<py::object>(value));
      if (!(*field->second >= 0) || !std::isfinite(*field->second)) refuse();
    }
    return multipliers;
  };
}

void bind_predicted_sample(py::module_& module) {
  py::class_<PredictedSample>(module, "PredictedSample")
      .def_readonly("index", &PredictedSample::index)
      .def_readonly("labels", &PredictedSample::labels)
      .def_readonly("predictions", &PredictedSample::predictions)
      .def_readonly("log_probs", &PredictedSample::log_probs)
      .def_property_readonly("loss", &PredictedSample::loss);
}

}  // namespace concord
