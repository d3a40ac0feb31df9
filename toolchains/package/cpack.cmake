# A Debian package and a tarball of a finished build's component runtime: the program and the plugins. libtorch is that of an
# installed wheel (CONCORD_TORCH, or `pip install torch`), as for every installation.
#
# CONCORD_BUILD=... CONCORD_TORCH=... cpack --config cpack.cmake -B FOLDER
set(root ${CMAKE_CURRENT_LIST_DIR}/../..)
execute_process(COMMAND ${CMAKE_COMMAND} -DROOT=${root} -P ${root}/toolchains/version.cmake OUTPUT_VARIABLE CPACK_PACKAGE_VERSION
  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE ".dev" "~dev" CPACK_DEBIAN_PACKAGE_VERSION "${CPACK_PACKAGE_VERSION}")  # earlier than the release
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME concord)
set(CPACK_PACKAGE_VENDOR Concord)
set(CPACK_PACKAGE_CONTACT "The Concord authors <noreply@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains language models on NVIDIA, Ascend and plain CPUs")
set(CPACK_PACKAGE_DESCRIPTION "The program concord and its plugins. They use the libtorch of the Python package torch:
 CONCORD_TORCH=/path/to/site-packages/torch concord train")
set(CPACK_INSTALL_CMAKE_PROJECTS "$ENV{CONCORD_BUILD}" Concord runtime /)
set(CPACK_CMAKE_GENERATOR Ninja)
cmake_host_system_information(RESULT machine QUERY OS_PLATFORM)
set(CPACK_PACKAGE_FILE_NAME "concord-${CPACK_PACKAGE_VERSION}-linux-${machine}")
set(CPACK_TOPLEVEL_TAG linux-${machine})
set(CPACK_STRIP_FILES ON)
set(CPACK_SET_DESTDIR OFF)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "$ENV{CONCORD_TORCH}/lib")
set(CPACK_DEBIAN_PACKAGE_DEPENDS "python3")  # tokenizes, and reads Parquet
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3-jinja2")
