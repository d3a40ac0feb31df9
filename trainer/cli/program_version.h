// The version of the program, with the commit it was built from: the source is written by toolchains/version.cmake.
#pragma once

namespace concord {

const char* program_version();  // "0.1.0", or "0.1.0.dev1181+ge8e7b7c04f" between two releases

}  // namespace concord
