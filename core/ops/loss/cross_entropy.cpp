#include "core/ops/loss/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "core/ops/check.h"
#include "core/ops/cpu/cross_entropy.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace ops::cross_entropy_op {
namespace {

using at::Tensor;

constexpr const char* kName = "cross_entropy";

// Returns the parts of each row [rows, 4]: maximum logit, sum of exp(logit - maximum), the label's logit, sum of
// logits. |first| is the index of column 0; columns starting at |used| are padding.
Tensor parts(const Tensor& logits, const Tensor& labels, int64_t first, int64_t used, bool with_sum) {
  static const auto op =
      find<Tensor(const Tensor&, const Tensor&, int64_t, int64_t, bool)>("concord::cross_entropy_parts");
  return op.call(logits, labels, first, used, with_sum);
}

// Overwrites |logits| with softmax * soft - [label] * hard - level, for each row.
void write_grad(Tensor& logits, const Tensor& labels, int64_t first, int64_t used, const Tensor& log_sum,
                const Tensor& soft, const Tensor& hard, const Tensor& level) {
  static const auto op =
      find<void(Tensor&, const Tensor&, int64_t, int64_t, const Tensor&, const Tensor&, const Tensor&, const Tensor&)>(
          "concord::cross_entropy_grad_");
  op.call(logits, labels, first, used, log_sum, soft, hard, level);
}

// Sets |loss| to the losses of the rows, and overwrites |logits| with their gradients for the expected gradient of the
// losses.
void with_grad(Tensor& logits, Tensor& loss, const Tensor& labels, int64_t used, const CrossEntropyOptions& options) {
  static const auto op = find<void(Tensor&, Tensor&, const Tensor&, int64_t, int64_t, double, double, double)>(
      "concord::cross_entropy_with_grad_");
  op.call(logits, loss, labels, used, options.ignore_index, options.label_smoothing, options.z_loss,
          options.expected_grad);
}

// Multiplies the rows of |x| by grad / expected.
void rescale(Tensor& x, const Tensor& grad, double expected) {
  static const auto op = find<void(Tensor&, const Tensor&, double)>("concord::cross_entropy_rescale_");
  op.call(x, grad, expected);
}

// -------------------------------------------------------------------------------------------------------- reference

// Returns a mask [rows, used] of the labels' columns.
Tensor label_columns(const Tensor& labels, int64_t first, int64_t used) {
  return labels.unsqueeze(-1) == at::arange(first, first + used, labels.options());
}

Tensor reference_parts(const Tensor& logits, const Tensor& labels, int64_t first, int64_t used, bool with_sum) {
  const Tensor x = logits.narrow(-1, 0, used).to(sum_type(logits.scalar_type()));
  const Tensor none = at::zeros({x.size(0)}, x.options());
  if (used == 0) return at::stack({none - std::numeric_limits<double>::infinity(), none, none, none}, -1);
  const Tensor largest = x.amax(-1);
  const Tensor sum = (x - largest.unsqueeze(-1)).exp().sum(-1);
  const Tensor at_label = at::where(label_columns(labels, first, used), x, at::zeros({}, x.options())).sum(-1);
  return at::stack({largest, sum, at_label, with_sum ? x.sum(-1) : none}, -1);
}

void reference_grad(Tensor& logits, const Tensor& labels, int64_t first, int64_t used, const Tensor& log_sum,
                    const Tensor& soft, const Tensor& hard, const Tensor& level) {
  const auto column = [](const Tensor& t) { return t.unsqueeze(-1); };
  const Tensor x = logits.narrow(-1, 0, used);
  const Tensor softmax = (x.to(log_sum.scalar_type()) - column(log_sum)).exp();
  const Tensor at_label = label_columns(labels, first, used).to(softmax.scalar_type());
  x.copy_(softmax * column(soft) - at_label * column(hard) - column(level));
  logits.narrow(-1, used, logits.size(-1) - used).zero_();
}

// -------------------------------------------------------------------------------------------------------------- cpu

VocabRows rows_of(const Tensor& logits, int64_t first, int64_t used) {
  return {logits.size(0), logits.size(1), used, first};
}

Tensor cpu_parts(const Tensor& logits, const Tensor& labels, int64_t first, int64_t used, bool with_sum) {
  if (!has_loops(logits.scalar_type())) return reference_parts(logits, labels, first, used, with_sum);
  const Tensor dense = logits.contiguous();
  const Tensor dense_labels = labels.contiguous();
  const Tensor result = at::empty({logits.size(0), 4}, logits.options().dtype(sum_type(logits.scalar_type())));
  visit_type(kName, logits.scalar_type(), [&]<class T>(T) {
    cross_entropy_parts<T>(rows_of(dense, first, used), dense.const_data_ptr<T>(),
                           dense_labels.const_data_ptr<int64_t>(), with_sum, result.mutable_data_ptr<Sum<T>>());
  });
  return result;
}

void cpu_grad(Tensor& logits, const Tensor& labels, int64_t first, int64_t used, const Tensor& log_sum,
              const Tensor& soft, const Tensor& hard, const Tensor& level) {
  if (!has_loops(logits.scalar_type()) || !logits.is_contiguous()) {
    return reference_grad(logits, labels, first, used, log_sum, soft, hard, level);
  }
  const Tensor dense_labels = labels.contiguous();
  const Tensor numbers = at::stack({log_sum, soft, hard, level});
  visit_type(kName, logits.scalar_type(), [&]<class T>(T) {
    const Sum<T>* row = numbers.const_data_ptr<Sum<T>>();
    const int64_t rows = logits.size(0);
    cross_entropy_grad<T>(rows_of(logits, first, used), logits.const_data_ptr<T>(),
                          dense_labels.const_data_ptr<int64_t>(), {row, row + rows, row + 2 * rows, row + 3 * rows},
                          logits.mutable_data_ptr<T>());
  });
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def("cross_entropy_parts(Tensor logits, Tensor labels, int first, int used, bool with_sum) -> Tensor");
  m.def(
      "cross_entropy_grad_(Tensor(a!) logits, Tensor labels, int first, int used, Tensor log_sum, Tensor soft, "
      "Tensor hard, Tensor level) -> ()");
  m.def(
      "cross_entropy_with_grad_(Tensor(a!) logits, Tensor(b!) loss, Tensor labels, int used, int ignore_index, float "
      "label_smoothing, float z_loss, float grad) -> ()");
  m.def("cross_entropy_rescale_(Tensor(a!) x, Tensor grad, float expected) -> ()");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("cross_entropy_parts", reference_parts);
  m.impl("cross_entropy_grad_", reference_grad);
}
TORCH_LIBRARY_IMPL(concord, CPU, m) {
  m.impl("cross_entropy_parts", cpu_parts);
  m.impl("cross_entropy_grad_", cpu_grad);
}

// -------------------------------------------------------------------------------------------------------------- loss

struct Columns {
  int64_t vocabulary;  // columns of all ranks
  int64_t first;       // first column of this rank
  int64_t used;        // valid columns on this rank
};

Columns columns_of(const Tensor& logits, const CrossEntropyOptions& options, const VocabShare& share) {
  const int64_t ranks = share.count;
  const int64_t width = logits.size(-1);
  const int64_t first = share.index * width;
  const int64_t vocabulary = options.vocabulary > 0 ? options.vocabulary : ranks * width;
  if (share.index < 0 || share.index >= ranks || (ranks > 1 && !share.all_gather)) {
    refuse(kName,
           fmt::format("share {} of {} is not a valid part of a vocabulary, or has no all_gather", share.index, ranks));
  }
  if (options.vocabulary < 0 || vocabulary > ranks * width || vocabulary == 0) {
    refuse(kName, fmt::format("a vocabulary of {} does not fit into {} x {} columns of logits", options.vocabulary,
                              ranks, width));
  }
  return {vocabulary, first, std::clamp<int64_t>(vocabulary - first, 0, width)};
}

void check(const Tensor& logits, const Tensor& labels, const CrossEntropyOptions& options) {
  check_floating(kName, "logits", logits);
  const bool fits = labels.defined() && labels.scalar_type() == at::kLong && labels.device() == logits.device() &&
                    logits.dim() >= 1 && labels.sizes() == logits.sizes().slice(0, logits.sizes().size() - 1);
  if (!fits) {
    refuse(kName,
           fmt::format("logits are {} and labels {}; labels must be Long, on the same device, one per row of logits",
                       text_of(logits), text_of(labels)));
  }
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1)) {
    refuse(kName, fmt::format("label_smoothing is {:g}; must be from 0 to 1", options.label_smoothing));
  }
}

// Checks only on the host: reading a value from a device would wait for it.
void check_values(const Tensor& labels, const CrossEntropyOptions& options, int64_t vocabulary) {
  if (!labels.device().is_cpu()) return;
  const Tensor dense = labels.contiguous();
  const int64_t* label = dense.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < dense.numel(); ++i) {
    if (label[i] == options.ignore_index || (label[i] >= 0 && label[i] < vocabulary)) continue;
    refuse(kName, fmt::format("label {} is {}; must be from 0 to {}, or {} to be ignored", i, label[i], vocabulary - 1,
                              options.ignore_index));
  }
}

// Returns the parts of all ranks [ranks, rows, 4].
Tensor gather_parts(const Tensor& mine, const VocabShare& share) {
  if (share.count == 1) return mine.unsqueeze(0);
  const Tensor all = at::empty({share.count, mine.size(0), mine.size(1)}, mine.options());
  share.all_gather(all, mine.contiguous());
  return all;
}

struct Whole {
  Tensor log_sum;   // [rows]
  Tensor at_label;  // the label's logit
  Tensor sum;       // sum of all logits
};

Whole whole(const Tensor& all) {
  const Tensor largest = all.select(-1, 0);
  const Tensor top = largest.amax(0);
  const Tensor sum = (all.select(-1, 1) * (largest - top).exp()).sum(0);
  return {top + sum.log(), all.select(-1, 2).sum(0), all.select(-1, 3).sum(0)};
}

Tensor losses(const Whole& row, const Tensor& counts, const CrossEntropyOptions& options, int64_t vocabulary) {
  Tensor loss = row.log_sum - (1 - options.label_smoothing) * row.at_label;
  if (options.label_smoothing > 0) loss = loss - row.sum * (options.label_smoothing / static_cast<double>(vocabulary));
  if (options.z_loss != 0) loss = loss + options.z_loss * row.log_sum * row.log_sum;
  return at::where(counts, loss, at::zeros({}, loss.options()));
}

// The factors of the rows of softmax, of the label and of all columns in the gradient.
struct RowFactors {
  Tensor soft, hard, level;
};

RowFactors factors_of(const Tensor& grad, const Tensor& log_sum, const CrossEntropyOptions& options,
                      int64_t vocabulary) {
  return {options.z_loss != 0 ? grad * (1 + 2 * options.z_loss * log_sum) : grad, grad * (1 - options.label_smoothing),
          grad * (options.label_smoothing / static_cast<double>(vocabulary))};
}

// d loss / d logit = softmax * (1 + 2 z lse) - (1 - s) [label] - s / V, times the gradient of the loss.
Tensor grad_of(const Backward& b, const CrossEntropyOptions& options, const Columns& columns) {
  const Tensor& logits = b.saved[0];
  const Tensor& labels = b.saved[1];
  const Tensor& log_sum = b.saved[2];
  const Tensor flat = b.grad.reshape({-1}).to(log_sum.scalar_type());
  const Tensor grad = at::where(labels != options.ignore_index, flat, at::zeros({}, flat.options()));
  const RowFactors by = factors_of(grad, log_sum, options, columns.vocabulary);
  Tensor result = options.overwrite_logits ? logits : logits.clone(at::MemoryFormat::Contiguous);
  Tensor rows = result.view({-1, result.size(-1)});
  write_grad(rows, labels, columns.first, columns.used, log_sum, by.soft, by.hard, by.level);
  if (options.overwrite_logits) result.unsafeGetTensorImpl()->bump_version();  // later uses of them are detected
  return result;
}

// Computes loss and gradient with the two separate operators.
void halves_with_grad(Tensor& logits, Tensor& loss, const Tensor& labels, const Columns& columns,
                      const CrossEntropyOptions& options, const VocabShare& share) {
  const Tensor mine = parts(logits, labels, columns.first, columns.used, options.label_smoothing > 0);
  const Whole row = whole(gather_parts(mine, share));
  const Tensor counts = labels != options.ignore_index;
  loss.copy_(losses(row, counts, options, columns.vocabulary));
  const at::TensorOptions like = row.log_sum.options();
  const Tensor grads = at::where(counts, at::full({}, options.expected_grad, like), at::zeros({}, like));
  const RowFactors by = factors_of(grads, row.log_sum, options, columns.vocabulary);
  write_grad(logits, labels, columns.first, columns.used, row.log_sum, by.soft, by.hard, by.level);
}

void reference_with_grad(Tensor& logits, Tensor& loss, const Tensor& labels, int64_t used, int64_t ignore_index,
                         double label_smoothing, double z_loss, double grad) {
  const CrossEntropyOptions options{
      .ignore_index = ignore_index, .label_smoothing = label_smoothing, .z_loss = z_loss, .expected_grad = grad};
  halves_with_grad(logits, loss, labels, {.vocabulary = used, .first = 0, .used = used}, options, {});
}

void reference_rescale(Tensor& x, const Tensor& grad, double expected) { x.mul_((grad / expected).unsqueeze(-1)); }

// Reads the rows only if they have to be rescaled.
void cpu_rescale(Tensor& x, const Tensor& grad, double expected) {
  if (!(grad == expected).all().item<bool>()) reference_rescale(x, grad, expected);
}

TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("cross_entropy_with_grad_", reference_with_grad);
  m.impl("cross_entropy_rescale_", reference_rescale);
}
TORCH_LIBRARY_IMPL(concord, CPU, m) { m.impl("cross_entropy_rescale_", cpu_rescale); }

// Forward leaves the gradient in |logits|; backward only rescales it if it receives a gradient of the loss that differs
// from the expected one.
Tensor with_expected_grad(const Tensor& logits, const Tensor& labels, const CrossEntropyOptions& options,
                          const Columns& columns) {
  const auto run = [&] {
    const Tensor flat_labels = labels.reshape({-1});
    Tensor rows = logits.view({-1, logits.size(-1)});
    Tensor loss = at::empty({rows.size(0)}, logits.options().dtype(sum_type(logits.scalar_type())));
    with_grad(rows, loss, flat_labels, columns.used, options);
    logits.unsafeGetTensorImpl()->bump_version();  // later uses of them are detected
    return Forward{loss.view(labels.sizes()), {logits}};
  };
  return differentiable(kName, {logits}, run, [expected = options.expected_grad](const Backward& b) {
    const Tensor& result = b.saved[0];
    Tensor rows = result.view({-1, result.size(-1)});
    rescale(rows, b.grad.reshape({-1}), expected);
    return Tensors{result};
  });
}

}  // namespace
}  // namespace ops::cross_entropy_op

void cross_entropy_with_grad(at::Tensor& logits, at::Tensor& losses, const at::Tensor& labels,
                             const CrossEntropyOptions& options, const VocabShare& share) {
  using namespace ops::cross_entropy_op;
  check(logits, labels, options);
  const Columns columns = columns_of(logits, options, share);
  check_values(labels, options, columns.vocabulary);
  if (share.count > 1) return halves_with_grad(logits, losses, labels, columns, options, share);
  with_grad(logits, losses, labels, columns.used, options);
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const CrossEntropyOptions& options,
                         const VocabShare& share) {
  using namespace ops;
  using namespace ops::cross_entropy_op;
  check(logits, labels, options);
  const Columns columns = columns_of(logits, options, share);
  check_values(labels, options, columns.vocabulary);
  if (options.overwrite_logits && !logits.is_contiguous()) {
    refuse(kName, fmt::format("overwrite_logits needs contiguous logits, but these are {} with gaps", text_of(logits)));
  }
  if (options.overwrite_logits && options.expected_grad != 0 && share.count == 1 && needs_derivative({logits})) {
    return with_expected_grad(logits, labels, options, columns);
  }
  const auto run = [&] {
    const at::Tensor flat_labels = labels.reshape({-1});
    const at::Tensor mine = parts(logits.reshape({-1, logits.size(-1)}), flat_labels, columns.first, columns.used,
                                  options.label_smoothing > 0);
    const Whole row = whole(gather_parts(mine, share));
    const at::Tensor loss = losses(row, flat_labels != options.ignore_index, options, columns.vocabulary);
    return Forward{loss.view(labels.sizes()), {logits, flat_labels, row.log_sum}};
  };
  return differentiable(kName, {logits}, run,
                        [options, columns](const Backward& b) { return Tensors{grad_of(b, options, columns)}; });
}

}  // namespace concord
