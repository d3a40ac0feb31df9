// Looks up CANN at run time: the runtime, HCCL and the operator library become tables of functions (symbols.inc).
//
// CANN is not linked. A library is the first of these: the path in its setting (ascend.acl, ascend.hccl, ascend.opapi;
// an error if it cannot be loaded), the dynamic linker's, the one in $ASCEND_HOME_PATH/lib64. CANN 9 calls the runtime
// libacl_rt.so; libascendcl.so is its older name.
// Threads: load once, when the plugin is opened; the tables are constant after that.
#pragma once

#include <optional>
#include <string>
#include <vector>

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
  std::string simulator;  // a simulator's label ("sim-npu"); "" on hardware
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

// Returns the paths to try for a library with |names|: that of |setting| ("ascend.acl") alone if it is set.
std::vector<std::string> cann_candidates(const char* setting, const std::vector<std::string>& names);

// Throws UNAVAILABLE with every path tried, with a version that is not 8.1 to 9.x, or with the missing functions.
Acl load_acl();

// Throws UNAVAILABLE like load_acl().
Hccl load_hccl();

// Returns nullopt, with the reason in |out_reason|, if the library or one of its functions is missing.
std::optional<Aclnn> load_aclnn(std::string* out_reason);

// Throws UNAVAILABLE if |version| ("8.1.RC1", "9.0.0") is not supported; the message contains |path|.
void check_cann_version(const std::string& version, const std::string& path);

}  // namespace concord::ascend
