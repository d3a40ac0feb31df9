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
