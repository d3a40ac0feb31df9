// One action of a rank in a training step: a computation, a transfer, or the start of a reduction. Its text is the
// stage, the kind and the micro-batch, "2F0", in the format of torch.distributed.pipelining; parse_action reads it
// back.
//
//   2F0        forward of micro-batch 0 through stage 2
//   2B0        backward: the gradients of the input and of the weights together
//   2I0, 2W0   its halves: the gradient of the input, and later that of the weights
//   2SEND_F0   sends the output of stage 2 to the rank of stage 3;  3RECV_F0 receives it there
//   2SEND_B0   sends the gradient of its input to the rank of stage 1;  1RECV_B0 receives it there
//   2REDUCE_GRAD   all weight gradients of the stage are complete: starts their reduction over the data-parallel ranks
//
// A stage is a sequence of layers; stages are numbered over the whole model; a rank holds one or more of them (its
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
  int32_t microbatch = 0;  // 0 for reduce_gradients
  ActionKind kind = ActionKind::forward;
  bool joined = false;  // a transfer that is posted in the same batch as the previous transfer

  bool operator==(const Action&) const = default;
};

inline constexpr int32_t kMaxIndex = 1 << 24;  // maximum index of a stage or micro-batch

constexpr bool is_send(ActionKind kind) {
  return kind == ActionKind::send_activation || kind == ActionKind::send_gradient;
}
constexpr bool is_recv(ActionKind kind) {
  return kind == ActionKind::recv_activation || kind == ActionKind::recv_gradient;
}
constexpr bool is_transfer(ActionKind kind) { return is_send(kind) || is_recv(kind); }
// Returns whether the action computes the gradient of the stage's input, which the previous stage waits for.
constexpr bool gives_input_gradient(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::input_grad;
}
// Returns whether the action is the last one of a micro-batch on a stage: its activations are freed afterwards.
constexpr bool frees_activations(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::weight_grad;
}

// Returns whether the action uses the device's compute time: forward, backward, input_grad or weight_grad.
constexpr bool is_compute(ActionKind kind) { return kind <= ActionKind::weight_grad; }

// Returns the stage at the other end of a transfer.
constexpr int32_t peer_stage(const Action& transfer) {
  const bool to_next = transfer.kind == ActionKind::send_activation || transfer.kind == ActionKind::recv_gradient;
  return transfer.stage + (to_next ? 1 : -1);
}

std::string_view to_string(ActionKind kind);  // "F", "SEND_B", "REDUCE_GRAD"
std::string to_string(const Action& action);  // "2F0"; does not show whether it is joined

// Parses the text of to_string; nullopt for any other text, and for indices above kMaxIndex.
std::optional<Action> parse_action(std::string_view text);

}  // namespace concord
