#include "backends/cuda/torch/ops/choices.h"

#include <ATen/core/Dict.h>
#include <torch/library.h>

#include <stdexcept>
#include <utility>
#include <vector>

namespace concord::cuda::torch_side {
namespace {

std::vector<const Choice*>& all_choices() {
  static std::vector<const Choice*> all;
  return all;
}

Type type_named(const std::string& name) {
  if (name == "Float") return Type::f32;
  if (name == "Double") return Type::f64;
  if (name == "BFloat16") return Type::bf16;
  if (name == "Half") return Type::f16;
  throw std::runtime_error("concord_choices::taken of '" + name +
                           "'; kernels are for Float, Double, BFloat16 and Half");
}

c10::Dict<std::string, int64_t> taken(const std::string& type) {
  c10::Dict<std::string, int64_t> times;
  const Type of = type_named(type);
  for (const Choice* choice : all_choices()) {
    if (choice->is_open_for(of)) times.insert(choice->name(), choice->taken(of));
  }
  return times;
}

TORCH_LIBRARY_FRAGMENT(concord_choices, m) { m.def("taken", taken); }

}  // namespace

Choice::Choice(std::string name, std::initializer_list<Type> types, bool (*is_open)())
    : name_(std::move(name)), is_open_(is_open) {
  for (const Type type : types) fits_[static_cast<size_t>(type)] = true;
  all_choices().push_back(this);
}

bool Choice::is_open_for(Type type) const {
  return fits_[static_cast<size_t>(type)] && (is_open_ == nullptr || is_open_());
}

}  // namespace concord::cuda::torch_side
