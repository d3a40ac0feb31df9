// Distinguishes builds that must not be mixed: a hash of this tree's headers, the compiler and its flags, made by
// toolchains/build_identity.cmake. The text is also found in the file of whatever links it.
#pragma once

namespace concord {

const char* build_identity();  // "concord build 0.1.0 <64 hexadecimal digits>"

}  // namespace concord
