// Functions written in Python that take part in a run: compute_metrics and compute_loss. They hold the GIL, which the
// training thread takes for each call. A function must outlive the run.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "trainer/pretrain.h"

namespace concord {

// Throws ConfigError with |name| unless |function| can be called; |arguments| describes its arguments. Call with GIL.
void require_callable(const pybind11::object& function, const std::string& name, const std::string& arguments);

// HF's compute_metrics: |function| gets a list of PredictedSample and returns a dict of numbers. Throws like
// require_callable.
ComputeMetrics python_metrics(const pybind11::object& function);

// Returns a forward step whose token losses are those of |function|, in training and in evaluations. It is called on
// the last stage with the logits [B, S, V] of this rank's tokens and a dict of their input_ids and labels [B, S], and
// returns losses [B, S]; ignored labels do not count. Throws ConfigError for |arguments| that change the loss that it
// replaces. The forward step throws ConfigError for any other result. Needs no GIL.
ForwardStep python_loss(const pybind11::object& function, const TrainingArguments& arguments);

// Returns the multipliers of a parameter's group by |function| of its name and shape, which returns None or a dict with
// lr and weight_decay. Throws like require_callable; the result throws ConfigError for anything else.
Multipliers python_groups(const pybind11::object& function);

// Adds PredictedSample to the module.
void bind_predicted_sample(pybind11::module_& module);

}  // namespace concord
