#include "backends/ascend/sim/opapi/product_flops.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <array>
#include <memory>
#include <string_view>
#include <utility>

namespace concord::ascend::sim {
namespace {

struct ThreadCount {
  bool is_on = false;
  double flops = 0;
};
thread_local ThreadCount counted;

// The operators of libtorch that multiply, with the place of the first of their two factors. matmul calls these.
constexpr std::array<std::pair<std::string_view, size_t>, 4> kProducts = {
    {{"aten::mm", 0}, {"aten::bmm", 0}, {"aten::addmm", 1}, {"aten::baddbmm", 1}}};

// [.., m, k] and [.., k, n].
std::unique_ptr<at::ObserverContext> began(const at::RecordFunction& function) {
  if (!counted.is_on) return nullptr;
  for (const auto& [name, first] : kProducts) {
    const auto inputs = function.inputs();
    if (name != function.name() || inputs.size() < first + 2) continue;
    const at::Tensor a = inputs[first].toTensor(), b = inputs[first + 1].toTensor();
    counted.flops += 2 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
  }
  return nullptr;
}

// Each thread of a stream has its own callback, so that the program's operators do not pay for it.
void listen_once() {
  thread_local const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&began).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  static_cast<void>(handle);
}

}  // namespace

ProductFlops::ProductFlops() {
  listen_once();
  counted = {true, 0};
}

ProductFlops::~ProductFlops() { counted.is_on = false; }

double ProductFlops::count() const { return counted.flops; }

}  // namespace concord::ascend::sim
