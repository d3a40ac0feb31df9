// The cross entropy of an output layer without materialising all logits: y = x weight^T is computed some rows at a
// time, and for each chunk forward computes the losses, their gradient and both halves of the layer's derivative before
// the next chunk. Nothing is computed twice; backward only returns the gradient of x.
//
// Possible only if forward knows the gradient that each row's loss will receive (CrossEntropyOptions::expected_grad),
// and that backward follows: the weight gradient is in the sink by then.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "core/ops/grad_sink.h"
#include "core/ops/loss/cross_entropy.h"

namespace concord {

// Called with the logits of each chunk [rows, v] and its labels, before they are overwritten.
using LogitsReader = std::function<void(const at::Tensor& logits, const at::Tensor& labels)>;

struct PiecewiseLoss {
  CrossEntropyOptions cross_entropy;  // with an expected_grad other than 0
  int64_t rows = 0;                   // rows per chunk
  LogitsReader reader = {};           // may be empty
  VocabShare share = {};              // part of the vocabulary in |weight|
};

// |x| [n, in], |weight| [v, in], this rank's rows of the vocabulary, |labels| [n]. Returns the losses [n] like
// cross_entropy(); with a sharded vocabulary the gradient of x is this rank's summand. The weight gradient is added to
// |sink|, which is required if the weight is trained, immediately even if the sink defers; sink->added is called once,
// in backward. If no derivative is needed nothing is added. If backward receives a gradient that differs from the
// expected one, the gradient of a trained weight is already wrong, so the gradient of x is NaN in these rows. Throws
// ConfigError for sizes that do not match.
at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& labels,
                                const GradSink* sink, const PiecewiseLoss& how);

}  // namespace concord
