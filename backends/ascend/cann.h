// CANN, looked up at run time: the runtime, HCCL and the operator library as tables of functions (symbols.inc).
//
// Nothing of CANN is linked. Where a library is looked for, in this order: the setting that names it (ascend.acl,
// ascend.hccl, ascend.opapi: a path; a choice that fails is an error), the dynamic linker's own search, the folder
// $ASCEND_HOME_PATH/lib64. CANN 9 calls the runtime libacl_rt.so; libascendcl.so is its older name.
// Threads: loaded once, at the plugin's opening; constant after that.
#pragma once

#include <optional>
#include <string>

#include "backends/ascend/acl_abi.h"
#include "backends/ascend/aclnn_abi.h"
#include "backends/ascend/hccl_abi.h"

namespace concord::ascend {

namespace fn = abi::fn;

struct Acl {
#define CONCORD_ACL(name) fn::name* name = nullptr;
#define CONCORD_ACL_OPTIONAL(name) fn::name* name = nullptr;
#include "backends/ascend/symbols.inc"

  std::string path;
  std::string version;    // version of CANN, like "8.5.0"; "unknown" if it is not reported
  std::string simulator;  // what a simulator calls itself ("sim-npu"); "" on hardware
};

struct Hccl {
#define CONCORD_HCCL(name) fn::name* name = nullptr;
#define CONCORD_HCCL_OPTIONAL(name) fn::name* name = nullptr;
#include "backends/ascend/symbols.inc"

  std::string path;
};

struct Aclnn {
#define CONCORD_ACLNN(name) fn::name* name = nullptr;
#include "backends/ascend/symbols.inc"
};

// UNAVAILABLE with every place tried, with the version if it is not 8.1 to 9.x, or with the names that are missing.
Acl load_acl();

// UNAVAILABLE as load_acl.
Hccl load_hccl();

// Returns nullopt, with the reason in |out_reason|, if the library or one of its functions is missing.
std::optional<Aclnn> load_aclnn(std::string* out_reason);

// UNAVAILABLE if |version| ("8.1.RC1", "9.0.0") is not supported; the message has |path|.
void check_cann_version(const std::string& version, const std::string& path);

}  // namespace concord::ascend
