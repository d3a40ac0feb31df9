#include "core/ops/embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include "core/ops/check.h"
#include "core/ops/cpu/embedding.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace ops::embedding_op {
namespace {

using at::Tensor;

constexpr const char* kName = "embedding";

Tensor forward(const Tensor& weight, const Tensor& ids, int64_t first, int64_t vocabulary) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&, int64_t, int64_t)>("concord::embedding");
  return op.call(weight, ids, first, vocabulary);
}

// dweight[ids - first] += grad; |dweight| has the accumulation type.
void backward(Tensor& dweight, const Tensor& grad, const Tensor& ids, int64_t first, int64_t vocabulary) {
  static const auto op =
      find<void(Tensor&, const Tensor&, const Tensor&, int64_t, int64_t)>("concord::embedding_backward_");
  op.call(dweight, grad, ids, first, vocabulary);
}

// -------------------------------------------------------------------------------------------------------- reference

// The rows of the tokens' ids in a table, and which of them are on other ranks.
struct Rows {
  Rows(const Tensor& ids, int64_t first, int64_t vocabulary, int64_t rows) : index(ids.reshape({-1})) {
    if (first == 0 && vocabulary <= rows) return;
    const Tensor row = first == 0 ? index : index - first;
    index = row.clamp(0, rows - 1);
    elsewhere = (row != index).unsqueeze(-1);
  }
  Tensor index;      // [tokens], any row if it is on another rank
  Tensor elsewhere;  // [tokens, 1] bool; undefined if the table has all rows
};

std::vector<int64_t> with_width(const Tensor& ids, int64_t width) {
  auto sizes = ids.sizes().vec();
  sizes.push_back(width);
  return sizes;
}

Tensor reference(const Tensor& weight, const Tensor& ids, int64_t first, int64_t vocabulary) {
  const Rows rows(ids, first, vocabulary, weight.size(0));
  const Tensor found = weight.index_select(0, rows.index);
  const Tensor y = rows.elsewhere.defined() ? found.masked_fill(rows.elsewhere, 0) : found;
  return y.reshape(with_width(ids, weight.size(1)));
}

void reference_backward(Tensor& dweight, const Tensor& grad, const Tensor& ids, int64_t first, int64_t vocabulary) {
  const Rows rows(ids, first, vocabulary, dweight.size(0));
  const Tensor wide = grad.reshape({-1, grad.size(-1)}).to(dweight.scalar_type());
  dweight.index_add_(0, rows.index, rows.elsewhere.defined() ? wide.masked_fill(rows.elsewhere, 0) : wide);
}

// -------------------------------------------------------------------------------------------------------------- cpu

Tensor cpu(const Tensor& weight, const Tensor& ids, int64_t first, int64_t vocabulary) {
  if (!has_loops(weight.scalar_type())) return reference(weight, ids, first, vocabulary);
  const Tensor table = weight.contiguous();
  const Tensor dense = ids.contiguous();
  const Tensor y = at::empty(with_width(ids, weight.size(1)), weight.options());
  visit_type(kName, weight.scalar_type(), [&]<class T>(T) {
    embedding_gather<T>({ids.numel(), weight.size(0), weight.size(1), first}, table.const_data_ptr<T>(),
                        dense.const_data_ptr<int64_t>(), y.mutable_data_ptr<T>());
  });
  return y;
}

void cpu_backward(Tensor& dweight, const Tensor& grad, const Tensor& ids, int64_t first, int64_t vocabulary) {
  const auto type = grad.scalar_type();
  if (!has_loops(type) || dweight.scalar_type() != sum_type(type) || !dweight.is_contiguous()) {
    return reference_backward(dweight, grad, ids, first, vocabulary);
  }
  const Tensor g = grad.contiguous();
  const Tensor dense = ids.contiguous();
  visit_type(kName, type, [&]<class T>(T) {
    embedding_scatter<T>({ids.numel(), dweight.size(0), dweight.size(1), first}, g.const_data_ptr<T>(),
                         dense.const_data_ptr<int64_t>(), dweight.mutable_data_ptr<Sum<T>>());
  });
}

// ------------------------------------------------------------------------------------------------------- derivative

// Clearing the table takes most of the time of the derivative.
Tensor zero_table(at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) return at::zeros(sizes, options);
  const Tensor table = at::empty(sizes, options);
  embedding_clear(table.mutable_data_ptr(), static_cast<int64_t>(table.nbytes()));
  return table;
}

Tensor autograd(const Tensor& weight, const Tensor& ids, int64_t first, int64_t vocabulary) {
  const auto run = [&] { return Forward{forward(weight, ids, first, vocabulary), {ids}}; };
  const auto sizes = weight.sizes().vec();
  const auto options = weight.options();
  return differentiable(kName, {weight}, run, [sizes, options, first, vocabulary](const Backward& b) {
    const auto type = c10::typeMetaToScalarType(options.dtype());
    Tensor dweight = zero_table(sizes, options.dtype(sum_type(type)));
    backward(dweight, b.grad, b.saved[0], first, vocabulary);
    return Tensors{dweight.to(type)};
  });
}

Tensor into_sink(const Tensor& weight, const Tensor& ids, int64_t first, int64_t vocabulary, const GradSink& sink) {
  const auto run = [&] { return Forward{forward(weight, ids, first, vocabulary), {ids}}; };
  return differentiable(kName, {weight}, run, [sink, first, vocabulary](const Backward& b) {
    sink.add([grad = b.grad, ids = b.saved[0], first, vocabulary](Tensor& main) {
      backward(main, grad, ids, first, vocabulary);
    });
    return Tensors{Tensor()};
  });
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def("embedding(Tensor weight, Tensor ids, int first, int vocabulary) -> Tensor");
  m.def("embedding_backward_(Tensor(a!) dweight, Tensor grad, Tensor ids, int first, int vocabulary) -> ()");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("embedding", reference);
  m.impl("embedding_backward_", reference_backward);
}
TORCH_LIBRARY_IMPL(concord, CPU, m) {
  m.impl("embedding", cpu);
  m.impl("embedding_backward_", cpu_backward);
}
TORCH_LIBRARY_IMPL(concord, Autograd, m) { m.impl("embedding", autograd); }

// Checks only on the host: reading a value from a device would wait for it.
void check_values(const Tensor& ids, int64_t vocabulary) {
  if (!ids.device().is_cpu()) return;
  const Tensor dense = ids.contiguous();
  const int64_t* id = dense.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < dense.numel(); ++i) {
    if (id[i] >= 0 && id[i] < vocabulary) continue;
    refuse(kName, fmt::format("id {} is {}; must be from 0 to {}", i, id[i], vocabulary - 1));
  }
}

}  // namespace
}  // namespace ops::embedding_op

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids, const EmbeddingOptions& options,
                     const GradSink* sink) {
  using namespace ops;
  using namespace ops::embedding_op;
  check_floating(kName, "weight", weight);
  if (weight.dim() != 2 || !ids.defined() || ids.scalar_type() != at::kLong || ids.device() != weight.device()) {
    refuse(kName, fmt::format("weight is {} and ids are {}; they must be [rows, n] and Long, on the same device",
                              text_of(weight), text_of(ids)));
  }
  const int64_t vocabulary = options.vocabulary > 0 ? options.vocabulary : options.first + weight.size(0);
  check_values(ids, vocabulary);
  if (sink == nullptr) return forward(weight, ids, options.first, vocabulary);
  if (!sink->main.defined() || sink->main.sizes() != weight.sizes() || sink->main.device() != weight.device()) {
    refuse(kName, fmt::format("the main gradient is {} for a weight of {}", text_of(sink->main), text_of(weight)));
  }
  return into_sink(weight, ids, options.first, vocabulary, *sink);
}

}  // namespace concord
