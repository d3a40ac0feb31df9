# CONCORD_SANITIZE=address (with undefined) or thread, for every target of the build. With little optimisation: at -O3 a
# file under address and undefined takes GCC a minute (seen: 67 s; with -O0 8 s), and the findings are the same.
if(CONCORD_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1 -O0)
  add_link_options(-fsanitize=address,undefined)
elseif(CONCORD_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer -g1 -O1)
  add_link_options(-fsanitize=thread)
elseif(NOT CONCORD_SANITIZE STREQUAL "")
  message(FATAL_ERROR "CONCORD_SANITIZE is '${CONCORD_SANITIZE}'; it must be 'address', 'thread' or empty")
endif()

# Without optimisation Clang selects instructions on 64-bit ARM by GlobalISel, which takes a tenth longer to compile a
# batch of a library than SelectionDAG, the default of other processors.
if(CONCORD_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-fno-global-isel)
endif()

# 119 links of the address sanitizer's build take lld 21 s of CPU time, GNU ld 65. An export map may name symbols of
# another version of a library, which GNU ld accepts.
if(CONCORD_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  string(REGEX MATCH "^[0-9]+" major "${CMAKE_CXX_COMPILER_VERSION}")
  find_program(CONCORD_LLD ld.lld-${major})
  if(CONCORD_LLD)
    add_link_options(-fuse-ld=lld -Wl,--undefined-version)
  endif()
endif()
