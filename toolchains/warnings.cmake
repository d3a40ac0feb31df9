# One strict set of warnings for all of this project's targets, through the interface target concord_build_flags.
add_library(concord_build_flags INTERFACE)
set(shadow -Wshadow)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(shadow "")  # it has no -Wshadow=local; GCC, which the release build uses, has
elseif(CMAKE_UNITY_BUILD)
  # To GCC, sources that are compiled together are headers, and see each other's constants.
  set(shadow -Wshadow=local -Wno-subobject-linkage)
endif()
target_compile_options(concord_build_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wno-sign-conversion>
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor;${shadow}>)
option(CONCORD_WERROR "Treat warnings as errors" ${PROJECT_IS_TOP_LEVEL})
if(CONCORD_WERROR AND NOT CONCORD_SANITIZE)  # sanitizers make GCC see ghosts; the plain build is the judge
  target_compile_options(concord_build_flags INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    # It sees one in std::vector<bool>::reserve, inlined from libtorch's Function::apply.
    target_compile_options(concord_build_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-error=array-bounds>)
  endif()
endif()
