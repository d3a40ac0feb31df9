// A runtime that reports its version and has nothing else.
#include <cstring>

#include "backends/ascend/acl_abi.h"

using concord::ascend::abi::aclCANNPackageName;
using concord::ascend::abi::aclCANNPackageVersion;

extern "C" __attribute__((visibility("default"))) int aclsysGetCANNVersion(aclCANNPackageName,
                                                                           aclCANNPackageVersion* version) {
  std::strcpy(version->version, FAKE_CANN_VERSION);
  return 0;
}
