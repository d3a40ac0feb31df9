// A library that only tells a version of NCCL: for tests of what the plugin says of one that it does not know.
#include <nccl.h>

extern "C" __attribute__((visibility("default"))) ncclResult_t ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return ncclSuccess;
}
