// A library that only reports a version of NCCL: for tests of the plugin's error about an unknown version.
#include <nccl.h>

extern "C" __attribute__((visibility("default"))) ncclResult_t ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return ncclSuccess;
}
