// The process, versions and error messages.
#include <cstdio>
#include <cstring>
#include <string>

#include "backends/ascend/sim/runtime/acl/acl.h"
#include "backends/ascend/sim/runtime/error.h"
#include "backends/ascend/sim/runtime/process.h"
#include "backends/ascend/sim/runtime/settings.h"

using namespace concord::ascend::abi;
using namespace concord::ascend::sim;

namespace {

// The n-th number of "8.5.0".
std::string version_part(int n) {
  std::string rest = settings().cann;
  for (; n > 0; --n) {
    const size_t dot = rest.find('.');
    if (dot == std::string::npos) return "0";
    rest = rest.substr(dot + 1);
  }
  return rest.substr(0, rest.find('.'));
}

template <size_t N>
void put(char (&field)[N], const std::string& value) {
  std::snprintf(field, N, "%s", value.c_str());
}

}  // namespace

const char* concord_sim_label(void) { return "sim-npu"; }

aclError aclInit(const char* /*config_path: dumps and profiles, of which there are none*/) {
  return guarded(__func__, [] { Process::init(); }, Init::kNotNeeded);
}

aclError aclFinalize() {
  return guarded(__func__, [] { Process::finalize(); }, Init::kNotNeeded);
}

int32_t aclFinalizeReference(uint64_t* /*left*/) {
  return guarded(__func__, [] { Process::finalize_reference(); }, Init::kNotNeeded);
}

const char* aclGetRecentErrMsg() { return take_message(); }
int32_t aclrtGetLastError(int32_t /*level*/) { return take_last_error(); }
int32_t aclrtPeekAtLastError(int32_t /*level*/) { return last_error(); }

const char* aclrtGetSocName() { return settings().soc.c_str(); }

aclError aclrtGetVersion(int32_t* major, int32_t* minor, int32_t* patch) {
  return guarded(
      __func__,
      [&] {
        require_not_null(major, "major");
        require_not_null(minor, "minor");
        require_not_null(patch, "patch");
        *major = 1;  // version of the interface, unchanged since its first release
        *minor = 15;
        *patch = 0;
      },
      Init::kNotNeeded);
}

aclError aclsysGetCANNVersion(aclCANNPackageName /*name: all of one version*/, aclCANNPackageVersion* version) {
  return guarded(
      __func__,
      [&] {
        require_not_null(version, "version");
        std::memset(version, 0, sizeof *version);
        put(version->version, settings().cann);
        put(version->majorVersion, version_part(0));
        put(version->minorVersion, version_part(1));
        put(version->releaseVersion, version_part(2));
        put(version->patchVersion, version_part(3));
      },
      Init::kNotNeeded);
}

aclError aclsysGetVersionStr(char* package, char* version) {
  return guarded(
      __func__,
      [&] {
        require_not_null(package, "package");
        require_not_null(version, "version");
        std::snprintf(version, 128, "%s", settings().cann.c_str());
      },
      Init::kNotNeeded);
}
