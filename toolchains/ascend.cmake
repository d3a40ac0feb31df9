# Looks for the headers of Huawei's CANN, for the ascend backend. They are optional and nothing is linked: the backend
# declares the ABI it uses itself and loads every symbol with dlsym. If the headers are found, its build compares its
# own declarations with them.
#
# Searched: ASCEND_HOME_PATH (CMake variable, then environment; CANN's set_env.sh sets it), then the torch_npu wheel:
# CONCORD_TORCH_NPU (CMake variable, then environment: the folder torch_npu of site-packages), next to libtorch, in
# .venv. Sets CONCORD_CANN_INCLUDE, a list of folders (empty: none). A folder that was named and has no headers is an
# error.
set(ASCEND_HOME_PATH "$ENV{ASCEND_HOME_PATH}" CACHE PATH "CANN's folder, with include/acl/acl.h")
set(CONCORD_TORCH_NPU "$ENV{CONCORD_TORCH_NPU}" CACHE PATH "The folder torch_npu of a Python's site-packages")

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
  set(wheels "${CONCORD_TORCH_NPU}")
  foreach(torch IN ITEMS "${CONCORD_TORCH}" "$ENV{CONCORD_TORCH}")
    if(torch)
      cmake_path(GET torch PARENT_PATH packages)
      list(APPEND wheels "${packages}/torch_npu")
    endif()
  endforeach()
  file(GLOB venv "${PROJECT_SOURCE_DIR}/.venv/lib/python3.*/site-packages/torch_npu")
  foreach(wheel IN LISTS wheels venv)
    if(EXISTS "${wheel}/include/third_party/acl/inc/acl/acl.h")
      # The wheel's own headers include each other by paths from its include folder.
      set(${out_include} "${wheel}/include/third_party/acl/inc" "${wheel}/include/third_party/hccl/inc"
        "${wheel}/include" PARENT_SCOPE)
      return()
    elseif(wheel STREQUAL CONCORD_TORCH_NPU)
      message(FATAL_ERROR
        "CONCORD_TORCH_NPU is '${wheel}', but there is no include/third_party/acl/inc/acl/acl.h in it; "
        "point it at the folder torch_npu of the wheel, or unset it: the headers are optional")
    endif()
  endforeach()
endfunction()

# concord_vendor_names(HEADER SOURCE...): writes HEADER with HAS_<name>, 1 or 0, for every name that the sources compare
# with CANN's headers: no preprocessor can tell whether a function or an enumerator was declared.
function(concord_vendor_names header)
  set(vendor)
  foreach(folder IN LISTS CONCORD_CANN_INCLUDE)
    file(GLOB files "${folder}/acl/*.h" "${folder}/acl/error_codes/*.h" "${folder}/hccl/*.h")
    foreach(file IN LISTS files)
      file(STRINGS "${file}" lines)
      string(APPEND vendor "${lines}")
    endforeach()
  endforeach()
  set(names)
  foreach(source IN LISTS ARGN)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    file(STRINGS ${source} lines REGEX "^(SAME|SAME_FUNCTION|SAME_FIELD|CONCORD_(ACL|HCCL)[A-Z_]*)\\(")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^[A-Z_]+\\(([^,)]+).*" "\\1" first "${line}")
      string(REGEX REPLACE "^SAME\\([^,]+, *([^)]+)\\).*" "\\1" name "${line}")
      if(name STREQUAL line)
        set(name "${first}")
      endif()
      list(APPEND names "${name}")
    endforeach()
  endforeach()
  list(FILTER names EXCLUDE REGEX "^acl(nn|Create|Destroy)")  # operators: neither header has them
  list(REMOVE_DUPLICATES names)
  set(text "// Written by CMake: which names the headers of this CANN have.\n#pragma once\n")
  set(missing)
  foreach(name IN LISTS names)
    string(REGEX MATCH "[^A-Za-z0-9_]${name}[^A-Za-z0-9_]" found "${vendor}")
    if(found)
      string(APPEND text "#define HAS_${name} 1\n")
    else()
      string(APPEND text "#define HAS_${name} 0\n")
      list(APPEND missing ${name})
    endif()
  endforeach()
  file(CONFIGURE OUTPUT ${header} CONTENT "${text}" @ONLY)
  list(LENGTH names all)
  message(STATUS "CANN headers: ${all} names are compared; missing in this release: ${missing}")
endfunction()

concord_find_cann(CONCORD_CANN_INCLUDE)
if(CONCORD_CANN_INCLUDE)
  message(STATUS "CANN headers: ${CONCORD_CANN_INCLUDE}")
else()
  message(STATUS "CANN headers: none found; the backend's own declarations are not checked")
endif()
