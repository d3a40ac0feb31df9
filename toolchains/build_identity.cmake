# Writes OUTPUT, the source of trainer/torch_module/build_identity.h: a hash of every header below ROOT whose types may
# cross from the program to its libtorch module, and of SETTINGS. A function of the sources, not of time or path, so
# that builds are reproducible. cmake -DROOT=... -DOUTPUT=... -DVERSION=... -DSETTINGS=... -P build_identity.cmake
file(GLOB_RECURSE headers RELATIVE "${ROOT}"
  "${ROOT}/core/*.h" "${ROOT}/platform/*.h" "${ROOT}/platform/*.hpp" "${ROOT}/trainer/*.h")
list(FILTER headers EXCLUDE REGEX "^platform/conformance/")  # a separate program
list(SORT headers)
set(text "${SETTINGS}")
foreach(header IN LISTS headers)
  file(SHA256 "${ROOT}/${header}" hash)
  string(APPEND text "\n${header} ${hash}")
endforeach()
string(SHA256 identity "${text}")
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [[
#include "trainer/torch_module/build_identity.h"

const char* concord::build_identity() { return "concord build @VERSION@ @identity@"; }
]])
