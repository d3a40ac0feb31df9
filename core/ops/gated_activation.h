// The activation between the two linear layers of an MLP: act(gate) * up, of one tensor that contains both. Computed in
// fp32 (fp64 for Double), rounded once; only that tensor is saved for the derivative. Independent of libtorch's
// headers.
#pragma once

namespace at {
class Tensor;
}

namespace concord {

struct GatedActivation {
  enum class Kind {
    silu,       // concord::swiglu: gate and up are halves, gate first
    gelu_tanh,  // halves like silu; gelu in its tanh form (Gemma)
    clamped,    // GPT-OSS: gate and up interleaved; g sigmoid(alpha g) (u + 1), g = min(gate, limit), |u| <= limit
  };
  Kind kind = Kind::silu;
  double alpha = 1.702;  // clamped only
  double limit = 7;
  bool operator==(const GatedActivation&) const = default;
};

// |gate_up| [..., 2 n] -> [..., n]. Throws ConfigError if the last dimension is odd.
at::Tensor gated_activation(const at::Tensor& gate_up, const GatedActivation& activation);

// Returns cap tanh(x / cap), which soft-caps x (Gemma 2's logits). Computed in the type of |x|, as in transformers.
// Saves |x|, so that the result may be overwritten.
at::Tensor soft_cap(const at::Tensor& x, double cap);

}  // namespace concord
