# Finds libtorch in a torch wheel and defines the imported target Concord::torch. Only libtorch_cpu and libc10 are
# linked, whatever the wheel holds: a vendor's part (libtorch_cuda.so) is loaded at run time, at the plugin's
# request. Also installed, for find_package(Concord).
#
# Searched in this order: the CMake variable CONCORD_TORCH, the environment variable CONCORD_TORCH, .venv next to the
# sources (./run creates it). A folder that was named but is unsuitable is an error, never a reason to look elsewhere.
# With CONCORD_TORCH_OPTIONAL set, it is not an error if nothing is found: the target is then not defined.
# CONCORD_TORCH_FOUND is the folder that was found, CONCORD_TORCH_VERSION its version. An installation sets
# CONCORD_TORCH_BUILT_WITH: its libraries were compiled with that version, and libtorch's types differ from one minor
# version to the next.
set(CONCORD_TORCH "$ENV{CONCORD_TORCH}" CACHE PATH "The torch folder of site-packages, with include/ and lib/")
set(CONCORD_TORCH_MINIMUM 2.11)

function(concord_find_torch)
  set(folder "${CONCORD_TORCH}")
  if(NOT folder)
    file(GLOB found "${PROJECT_SOURCE_DIR}/.venv/lib/python3.*/site-packages/torch")
    if(NOT found)
      if(CONCORD_TORCH_OPTIONAL)
        return()
      endif()
      if(CONCORD_TORCH_BUILT_WITH)
        message(FATAL_ERROR "Concord's core and trainer need libtorch ${CONCORD_TORCH_BUILT_WITH}, and CONCORD_TORCH is not "
          "set; give -DCONCORD_TORCH=/path/to/site-packages/torch (pip install torch==${CONCORD_TORCH_BUILT_WITH}), "
          "or request only the components that do not need it: find_package(Concord COMPONENTS sdk platform)")
      endif()
      message(FATAL_ERROR "Concord's core needs libtorch, which was not found: CONCORD_TORCH is not set and "
        "${PROJECT_SOURCE_DIR}/.venv contains no torch. Do one of these:\n"
        "  ./run build                                   installs torch into .venv, then builds\n"
        "  -DCONCORD_TORCH=/path/to/site-packages/torch  uses an existing one (the environment variable works too)\n"
        "  -DCONCORD_WITH_TORCH=OFF                      builds the platform and the backends only")
    endif()
    list(GET found 0 folder)
  endif()
  foreach(file IN ITEMS include/ATen/ATen.h lib/libtorch_cpu.so lib/libc10.so)
    if(NOT EXISTS "${folder}/${file}")
      message(FATAL_ERROR "CONCORD_TORCH is '${folder}', but there is no ${file} in it; it must be the folder "
        "'torch' of an installed wheel: python3 -c 'import torch; print(torch.__path__[0])'")
    endif()
  endforeach()
  concord_torch_version("${folder}" version)
  if(version VERSION_LESS CONCORD_TORCH_MINIMUM)
    message(FATAL_ERROR "torch ${version} in '${folder}' is too old; Concord needs ${CONCORD_TORCH_MINIMUM} or newer")
  endif()
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${version}")
  if(CONCORD_TORCH_BUILT_WITH AND NOT CONCORD_TORCH_BUILT_WITH MATCHES "^${minor}\\.")
    message(FATAL_ERROR "'${folder}' is torch ${version}, but this installation of Concord was compiled with "
      "${CONCORD_TORCH_BUILT_WITH}; give CONCORD_TORCH a torch of that version, or build Concord with this one")
  endif()
  message(STATUS "libtorch ${version}: ${folder}")
  concord_torch_targets("${folder}")
  set(CONCORD_TORCH_FOUND "${folder}" PARENT_SCOPE)
  set(CONCORD_TORCH_VERSION "${version}" PARENT_SCOPE)
endfunction()

function(concord_torch_version folder out_version)
  set(header "${folder}/include/torch/headeronly/version.h")  # moved there in 2.8
  if(NOT EXISTS "${header}")
    set(header "${folder}/include/torch/csrc/api/include/torch/version.h")
  endif()
  file(STRINGS "${header}" lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
  string(REPLACE ";" "." version "${numbers}")
  set(${out_version} "${version}" PARENT_SCOPE)
endfunction()

function(concord_torch_targets folder)
  if(TARGET Concord::torch)
    return()
  endif()
  foreach(name IN ITEMS torch_cpu c10)
    add_library(Concord::${name} SHARED IMPORTED GLOBAL)
    set_target_properties(Concord::${name} PROPERTIES IMPORTED_LOCATION "${folder}/lib/lib${name}.so")
  endforeach()
  add_library(Concord::torch INTERFACE IMPORTED GLOBAL)
  # One header per operator (AT_PER_OPERATOR_HEADERS): a third of the compile time. The wheel carries its own fmt
  # headers but not its library, so fmt is used from the headers here.
  set_target_properties(Concord::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${folder}/include;${folder}/include/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS "AT_PER_OPERATOR_HEADERS;FMT_HEADER_ONLY=1"
    INTERFACE_LINK_LIBRARIES "Concord::torch_cpu;Concord::c10")
endfunction()

concord_find_torch()
