# Linux on 64-bit ARM, used by most Ascend hosts: cmake --toolchain toolchains/linux-aarch64.cmake. On an ARM machine
# the native compiler is used, elsewhere Debian's cross compiler (package g++-aarch64-linux-gnu).
include(${CMAKE_CURRENT_LIST_DIR}/linux-target.cmake)
concord_linux_target(aarch64 aarch64-linux-gnu)
