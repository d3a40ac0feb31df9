// Declarations of the functions of CANN's operator library (libopapi.so) that this backend uses, in the manner of
// acl_abi.h: division in place, because an average is a sum and a division. An operator has two phases: the first
// returns the workspace size and an executor; the second enqueues the operator on a stream and consumes the executor.
#pragma once

#include "backends/ascend/acl_abi.h"

namespace concord::ascend::abi {

using aclnnStatus = int32_t;
struct aclTensor;
struct aclScalar;
struct aclOpExecutor;

namespace fn {
// clang-format off
using aclCreateTensor = aclTensor*(const int64_t* view_dims, uint64_t view_dim_count, aclDataType, const int64_t* strides, int64_t offset, aclFormat, const int64_t* storage_dims, uint64_t storage_dim_count, void* data);
using aclDestroyTensor = aclnnStatus(const aclTensor*);
using aclCreateScalar = aclScalar*(void* value, aclDataType);
using aclDestroyScalar = aclnnStatus(const aclScalar*);
using aclnnInplaceDivsGetWorkspaceSize = aclnnStatus(aclTensor* self, const aclScalar* other, uint64_t* workspace_bytes, aclOpExecutor**);
using aclnnInplaceDivs = aclnnStatus(void* workspace, uint64_t workspace_bytes, aclOpExecutor*, aclrtStream);
// clang-format on
}  // namespace fn

}  // namespace concord::ascend::abi
