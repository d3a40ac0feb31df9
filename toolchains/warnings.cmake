# One strict set of warnings for all of this project's targets, through the interface target concord_build_flags.
add_library(concord_build_flags INTERFACE)
target_compile_options(concord_build_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wno-sign-conversion;-Wnon-virtual-dtor>)
option(CONCORD_WERROR "Treat warnings as errors" ${PROJECT_IS_TOP_LEVEL})
if(CONCORD_WERROR)
  target_compile_options(concord_build_flags INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()
