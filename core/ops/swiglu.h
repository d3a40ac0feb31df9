// concord::swiglu: silu(gate) * up, where gate and up are the two halves of the last dimension, gate first (Shazeer,
// "GLU variants improve transformer", 2020). One tensor for both, because one GEMM computes both. Computed in fp32
// (fp64 for Double), rounded once.
#pragma once

namespace at {
class Tensor;
}

namespace concord {

// |gate_up| [..., 2 n] -> [..., n]. Throws ConfigError if the last dimension is odd.
at::Tensor swiglu(const at::Tensor& gate_up);

}  // namespace concord
