// One action of a rank in a step of training: a computation, a transfer, the start of a reduction. As text it is the
// stage, the kind and the micro-batch, "2F0", in the form of torch.distributed.pipelining, and the text parses back.
//
//   2F0        forward of micro-batch 0 through stage 2
//   2B0        backward: the gradients of the input and of the weights together
//   2I0, 2W0   its halves: the gradient of the input, and later that of the weights
//   2SEND_F0   sends the output of stage 2 to the rank of stage 3;  3RECV_F0 receives it there
//   2SEND_B0   sends the gradient of its input to the rank of stage 1;  1RECV_B0 receives it there
//   2REDUCE_GRAD   all weight gradients of the stage are complete: starts their reduction over the data-parallel ranks
//
// A stage is a sequence of layers; stages are numbered through the whole model; a rank holds one or more of them (its
// chunks). Threads: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace concord {

enum class ActionKind : uint8_t {
  forward,
  backward,
  input_grad,
  weight_grad,
  send_activation,
  recv_activation,
  send_gradient,
  recv_gradient,
  reduce_gradients,
};

struct Action {
  int32_t stage = 0;
  int32_t microbatch = 0;  // 0 for reduce_gradients, which has none
  ActionKind kind = ActionKind::forward;
  bool joined = false;  // a transfer that is posted together with the transfer before it, as one batch

  bool operator==(const Action&) const = default;
};

inline constexpr int32_t kLargestIndex = 1 << 24;  // no stage and no micro-batch has a larger number

constexpr bool is_send(ActionKind kind) {
  return kind == ActionKind::send_activation || kind == ActionKind::send_gradient;
}
constexpr bool is_recv(ActionKind kind) {
  return kind == ActionKind::recv_activation || kind == ActionKind::recv_gradient;
}
constexpr bool is_transfer(ActionKind kind) { return is_send(kind) || is_recv(kind); }
// Gives the gradient of the stage's input, which the stage before it waits for.
constexpr bool gives_input_gradient(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::input_grad;
}
// Ends what a micro-batch does on a stage: its activations are free after it.
constexpr bool frees_activations(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::weight_grad;
}

// Forward, backward, input_grad or weight_grad: what takes the device's time.
constexpr bool is_compute(ActionKind kind) { return kind <= ActionKind::weight_grad; }

// The stage at the other end of a transfer.
constexpr int32_t peer_stage(const Action& transfer) {
  const bool to_next = transfer.kind == ActionKind::send_activation || transfer.kind == ActionKind::recv_gradient;
  return transfer.stage + (to_next ? 1 : -1);
}

std::string_view to_string(ActionKind kind);  // "F", "SEND_B", "REDUCE_GRAD"
std::string to_string(const Action& action);  // "2F0"; does not tell whether it is joined

// Reads what to_string writes; nothing for any other text, and for numbers above kLargestIndex.
std::optional<Action> parse_action(std::string_view text);

}  // namespace concord
