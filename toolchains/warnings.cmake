# One strict set of warnings for all of this project's targets, through the interface target concord_build_flags.
add_library(concord_build_flags INTERFACE)
set(shadow -Wshadow)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(shadow "")  # Clang has no -Wshadow=local; GCC, which the release build uses, has it
elseif(CMAKE_UNITY_BUILD)
  # GCC treats sources of a unity batch as headers, which see each other's constants.
  set(shadow -Wshadow=local -Wno-subobject-linkage)
endif()
target_compile_options(concord_build_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wno-sign-conversion>
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor;${shadow}>)
option(CONCORD_WERROR "Treat warnings as errors" ${PROJECT_IS_TOP_LEVEL})
if(CONCORD_WERROR AND NOT CONCORD_SANITIZE)  # GCC has false positives under sanitizers; the plain build decides
  target_compile_options(concord_build_flags INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    # False positive in std::vector<bool>::reserve, inlined from libtorch's Function::apply.
    target_compile_options(concord_build_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-error=array-bounds>)
  endif()
endif()
