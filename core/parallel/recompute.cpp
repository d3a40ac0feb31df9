#include "core/parallel/recompute.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace concord {
namespace {

using torch::autograd::variable_list;

// State that backward needs in addition to the inputs. Owned by the graph node.
struct RecomputedSegment : torch::CustomClassHolder {
  TensorFunction function;
  RngTracker* rng = nullptr;
  std::vector<RngState> before;  // the generator states before the first run
  std::string stream;            // the stream that was current
  std::shared_ptr<SegmentInputs> kept_by;
  std::vector<bool> are_differentiated;  // the inputs, if |kept_by| is not null

  variable_list inputs(const variable_list& saved) const;
};

// Whether this thread is in the first run of a segment.
thread_local bool is_first_run = false;
struct FirstRun {
  bool before = std::exchange(is_first_run, true);
  ~FirstRun() { is_first_run = before; }
};

variable_list detached(const variable_list& inputs) {
  variable_list copies;
  for (const at::Tensor& input : inputs) {
    copies.push_back(input.detach().requires_grad_(input.requires_grad()));
  }
  return copies;
}

variable_list RecomputedSegment::inputs(const variable_list& saved) const {
  if (!kept_by) return detached(saved);
  variable_list copies = kept_by->load();
  for (size_t i = 0; i < copies.size(); ++i) copies[i] = copies[i].detach().requires_grad_(are_differentiated[i]);
  return copies;
}

// Propagates the defined gradients of |outputs| back through the graph of the second run. Parameters get theirs in
// passing.
void carry_back(const variable_list& outputs, const variable_list& gradients) {
  variable_list roots;
  variable_list root_gradients;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    root_gradients.push_back(gradients[i]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
}

class Recomputed : public torch::autograd::Function<Recomputed> {
 public:
  // |anchor| requires a gradient, so that a node exists even if only parameters do.
  static variable_list forward(torch::autograd::AutogradContext* context,
                               const c10::intrusive_ptr<RecomputedSegment>& segment, const at::Tensor& /*anchor*/,
                               at::TensorList inputs) {
    context->set_materialize_grads(false);
    if (segment->kept_by) {
      for (const at::Tensor& input : inputs) segment->are_differentiated.push_back(input.requires_grad());
      segment->kept_by->save(inputs.vec());
    } else {
      context->save_for_backward(inputs.vec());
    }
    context->saved_data["segment"] = c10::IValue::make_capsule(segment);
    const FirstRun scope;
    return segment->function(inputs.vec());
  }

  static variable_list backward(torch::autograd::AutogradContext* context, variable_list gradients) {
    const auto segment =
        c10::static_intrusive_pointer_cast<RecomputedSegment>(context->saved_data["segment"].toCapsule());
    const variable_list inputs = segment->inputs(context->get_saved_variables());
    {
      const at::AutoGradMode with_gradients(true);
      variable_list outputs;
      {
        const auto stream = segment->rng->fork(segment->stream);
        const auto replay = segment->rng->replay(segment->before);
        outputs = segment->function(inputs);
      }
      carry_back(outputs, gradients);
    }
    variable_list results{{}, {}};  // gradients of the segment and the anchor
    for (const at::Tensor& input : inputs) results.push_back(input.grad());
    return results;
  }
};

// Memory that is freed until backward. Does not keep the tensor alive: hooks live as long as the graph, and the memory
// as long as it is in use.
class ReleasedValues {
 public:
  ReleasedValues(const at::Tensor& made, std::function<at::Tensor()> again)
      : storage_(made.storage().getWeakStorageImpl()), bytes_(made.storage().nbytes()), again_(std::move(again)) {
    c10::StorageImpl* const storage = made.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(at::DataPtr(nullptr, storage->device()));
    storage->set_nbytes(size_t{0});
  }

  // Fills the memory on the first call.
  void fill() {
    const auto again = std::exchange(again_, nullptr);
    const auto storage = storage_.lock();
    if (!again || !storage) return;
    const at::NoGradGuard without_gradients;
    const at::Tensor values = again();
    TORCH_INTERNAL_ASSERT(values.storage().nbytes() == bytes_, "recomputed values have another size");
    storage->set_data_ptr_noswap(values.storage().unsafeGetStorageImpl()->set_data_ptr({nullptr, storage->device()}));
    storage->set_nbytes(bytes_);
  }

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  size_t bytes_;
  std::function<at::Tensor()> again_;
};

}  // namespace

std::vector<at::Tensor> recompute(TensorFunction function, const std::vector<at::Tensor>& inputs, RngTracker& rng,
                                  std::shared_ptr<SegmentInputs> kept_by) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  auto segment = c10::make_intrusive<RecomputedSegment>();
  segment->function = std::move(function);
  segment->rng = &rng;
  segment->before = rng.save();
  segment->stream = rng.current_name();
  segment->kept_by = std::move(kept_by);
  const at::Tensor anchor = at::empty({0}).requires_grad_(true);
  return Recomputed::apply(segment, anchor, at::TensorList(inputs));
}

bool is_differentiating() { return at::GradMode::is_enabled() || is_first_run; }

void recompute_values(const at::Tensor& made, const std::vector<at::Tensor>& users, std::function<at::Tensor()> again) {
  const auto is_differentiated = [](const at::Tensor& user) { return user.requires_grad(); };
  if (!at::GradMode::is_enabled() || std::none_of(users.begin(), users.end(), is_differentiated)) return;
  const auto values = std::make_shared<ReleasedValues>(made, std::move(again));
  for (const at::Tensor& user : users) {
    if (is_differentiated(user)) user.register_hook([values](const at::Tensor&) { values->fill(); });
  }
}

}  // namespace concord
