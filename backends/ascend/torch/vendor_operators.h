// The operators of torch_npu that Concord's kernels call (ops/), in its library "npu". An older torch_npu may lack
// some: then the references run, and `concord doctor --platform ascend` lists them.
#pragma once

namespace concord::ascend {

inline constexpr const char* kVendorOperators[] = {"npu_add_rms_norm",
                                                   "npu_fusion_attention",
                                                   "npu_fusion_attention_grad",
                                                   "npu_geglu",
                                                   "npu_geglu_grad",
                                                   "npu_grouped_matmul",
                                                   "npu_grouped_matmul_add_",
                                                   "npu_moe_token_permute",
                                                   "npu_moe_token_permute_grad",
                                                   "npu_moe_token_unpermute",
                                                   "npu_moe_token_unpermute_grad",
                                                   "npu_mrope",
                                                   "npu_ring_attention_update",
                                                   "npu_rms_norm",
                                                   "npu_rms_norm_backward",
                                                   "npu_rotary_mul",
                                                   "npu_swiglu",
                                                   "npu_swiglu_backward"};

}  // namespace concord::ascend
