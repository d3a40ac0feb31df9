// Looks up NCCL at run time, and translates its result codes to those of the ABI.
//
// The plugin does not link NCCL: it must use the NCCL of libtorch_cuda, because two copies in a process contend for the
// device. The first of these is used: the one already in the process; the setting cuda.nccl (a path); the one next to
// the process's libtorch (or the one that CONCORD_TORCH names), which libtorch_cuda finds too; the dynamic linker's.
// Threads: load once, at the plugin's opening; the table is constant after that.
#pragma once

#include <nccl.h>

#include <string>
#include <type_traits>

#include "platform/sdk/symbol_table.hpp"

namespace concord::cuda {

struct Nccl {
#define CONCORD_REQUIRED(name) decltype(&::name) name = nullptr;
#define CONCORD_OPTIONAL(name, ...) std::type_identity_t<__VA_ARGS__> name = nullptr;
#include "backends/cuda/nccl/symbols.inc"
#undef CONCORD_REQUIRED
#undef CONCORD_OPTIONAL

  int version = 0;  // in the form of ncclGetVersion: 22809
  std::string path;
};

// Returns "2.28.9" for 22809.
std::string version_text(int version);

// Finds NCCL and fills the table. Throws UNAVAILABLE, with every path tried, or with a version that is not supported.
Nccl load_nccl();

concord_status status_of(ncclResult_t result);

// Returns "ncclAllReduce failed with 3, ncclInternalError: internal error; NCCL's last error: ...". |comm| may be null.
std::string describe(const Nccl& nccl, ncclResult_t result, const char* call, ncclComm_t comm);

// Throws if |result| is neither success nor "in progress".
void check_nccl(const Nccl& nccl, ncclResult_t result, const char* call, ncclComm_t comm);

}  // namespace concord::cuda
