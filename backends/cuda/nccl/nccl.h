// NCCL, looked up at run time, and its result codes as the ABI's.
//
// The plugin does not link NCCL: it has to be the one that libtorch_cuda uses, because two of them in a process fight
// over the device. Where it is looked for, in this order: already in the process; the setting cuda.nccl (a path);
// next to the libtorch that is in the process (or that CONCORD_TORCH names), where libtorch_cuda will find it too; the
// dynamic linker's own search.
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

  int version = 0;  // as ncclGetVersion writes it: 22809
  std::string path;
};

// "2.28.9".
std::string version_text(int version);

// Finds NCCL and fills the table. UNAVAILABLE with every place tried, or with the version if it is not supported.
Nccl load_nccl();

concord_status status_of(ncclResult_t result);

// "ncclAllReduce failed with 3, ncclInternalError: internal error; NCCL's last error: ...". |comm| may be null.
std::string describe(const Nccl& nccl, ncclResult_t result, const char* call, ncclComm_t comm);

// Throws if |result| is neither success nor "in progress".
void check_nccl(const Nccl& nccl, ncclResult_t result, const char* call, ncclComm_t comm);

}  // namespace concord::cuda
