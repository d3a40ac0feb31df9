# Linux on x86-64: cmake --toolchain toolchains/linux-x86_64.cmake. On an x86-64 machine the native compiler is used,
# elsewhere Debian's cross compiler (package g++-x86-64-linux-gnu).
include(${CMAKE_CURRENT_LIST_DIR}/linux-target.cmake)
concord_linux_target(x86_64 x86_64-linux-gnu)
