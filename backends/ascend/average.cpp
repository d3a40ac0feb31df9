#include "backends/ascend/average.h"

#include <memory>

#include "backends/ascend/status.h"
#include "platform/sdk/checks.hpp"

namespace concord::ascend {
namespace {

abi::aclDataType acl_dtype(concord_dtype dtype) {
  switch (dtype) {
    case CONCORD_DTYPE_F32: return abi::kAclFloat;
    case CONCORD_DTYPE_F16: return abi::kAclFloat16;
    case CONCORD_DTYPE_BF16: return abi::kAclBf16;
    default: return abi::kAclDtUndefined;
  }
}

}  // namespace

const Aclnn* Averages::aclnn() const {
  std::call_once(loaded_, [this] { aclnn_ = load_aclnn(&reason_); });
  return aclnn_.has_value() ? &*aclnn_ : nullptr;
}

const std::string& Averages::reason() const {
  aclnn();
  return reason_;
}

bool Averages::supports(concord_dtype dtype) const {
  return acl_dtype(dtype) != abi::kAclDtUndefined && aclnn() != nullptr;
}

void Averages::divide(void* data, int64_t count, concord_dtype dtype, int32_t by, concord_stream stream,
                      const Workspace& workspace) const {
  const Acl& acl = devices_.acl();
  const Aclnn& aclnn = *this->aclnn();
  const int64_t stride = 1;
  const std::unique_ptr<abi::aclTensor, fn::aclDestroyTensor*> tensor(
      aclnn.aclCreateTensor(&count, 1, acl_dtype(dtype), &stride, 0, abi::kAclFormatNd, &count, 1, data),
      aclnn.aclDestroyTensor);
  auto divisor = static_cast<float>(by);  // exact: there are fewer than 2^24 ranks
  const std::unique_ptr<abi::aclScalar, fn::aclDestroyScalar*> scalar(aclnn.aclCreateScalar(&divisor, abi::kAclFloat),
                                                                      aclnn.aclDestroyScalar);
  if (tensor == nullptr || scalar == nullptr) {
    fail_acl(acl, abi::kAclInternalError, tensor == nullptr ? "aclCreateTensor" : "aclCreateScalar");
  }
  uint64_t bytes = 0;
  abi::aclOpExecutor* executor = nullptr;
  check_acl(acl, aclnn.aclnnInplaceDivsGetWorkspaceSize(tensor.get(), scalar.get(), &bytes, &executor),
            "aclnnInplaceDivsGetWorkspaceSize");
  void* space = bytes > 0 ? workspace(static_cast<int64_t>(bytes)) : nullptr;
  check_acl(acl, aclnn.aclnnInplaceDivs(space, bytes, executor, vendor(stream)), "aclnnInplaceDivs");
}

}  // namespace concord::ascend
