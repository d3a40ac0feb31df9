# Looks for the headers of Huawei's CANN, for the ascend backend. They are optional and nothing is linked: the backend
# declares the ABI it uses itself and takes every symbol by dlsym. Where the headers are found, its build compares its
# own declarations with them.
#
# Searched: ASCEND_HOME_PATH (CMake variable, then environment; CANN's set_env.sh sets it), then the torch_npu wheel
# beside libtorch. Sets CONCORD_CANN_INCLUDE, a list of folders (empty: none). An ASCEND_HOME_PATH without headers is an
# error.
set(ASCEND_HOME_PATH "$ENV{ASCEND_HOME_PATH}" CACHE PATH "CANN's folder, with include/acl/acl.h")

function(concord_find_cann out_include)
  set(${out_include} "" PARENT_SCOPE)
  if(ASCEND_HOME_PATH)
    foreach(folder IN ITEMS include aarch64-linux/include x86_64-linux/include)
      if(EXISTS "${ASCEND_HOME_PATH}/${folder}/acl/acl.h")
        set(${out_include} "${ASCEND_HOME_PATH}/${folder}" PARENT_SCOPE)
        return()
      endif()
    endforeach()
    message(FATAL_ERROR "ASCEND_HOME_PATH is '${ASCEND_HOME_PATH}', but there is no include/acl/acl.h in it; "
      "point it at CANN's folder (as set_env.sh does), or unset it: the headers are optional")
  endif()
  set(wheels)
  foreach(torch IN ITEMS "${CONCORD_TORCH}" "$ENV{CONCORD_TORCH}")
    if(torch)
      cmake_path(GET torch PARENT_PATH packages)
      list(APPEND wheels "${packages}/torch_npu")
    endif()
  endforeach()
  file(GLOB venv "${PROJECT_SOURCE_DIR}/.venv/lib/python3.*/site-packages/torch_npu")
  foreach(wheel IN LISTS wheels venv)
    if(EXISTS "${wheel}/include/third_party/acl/inc/acl/acl.h")
      set(${out_include} "${wheel}/include/third_party/acl/inc" "${wheel}/include/third_party/hccl/inc" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

concord_find_cann(CONCORD_CANN_INCLUDE)
if(CONCORD_CANN_INCLUDE)
  message(STATUS "CANN headers: ${CONCORD_CANN_INCLUDE}")
else()
  message(STATUS "CANN headers: none; the backend's own declarations are used unchecked")
endif()
