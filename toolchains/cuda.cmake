# For backends/cuda alone: the CUDA Toolkit (12.4 or newer) with nvcc, and NCCL's header. NCCL itself is looked up at
# run time, so that nothing is linked and no library must exist on the building machine.
#
# nvcc is looked for on the PATH and in /usr/local/cuda; nccl.h in the toolkit, in /usr, and in the wheel
# nvidia-nccl-cu13 (or -cu12) of the .venv, of CONCORD_TORCH's site-packages, and of the python3 on the PATH. To use
# others, set -DCMAKE_CUDA_COMPILER=.../nvcc and -DNCCL_ROOT=... (a folder with include/nccl.h).
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(CONCORD_NVCC nvcc HINTS /usr/local/cuda/bin $ENV{CUDA_HOME}/bin)
  if(NOT CONCORD_NVCC)
    message(FATAL_ERROR "PLATFORM includes cuda, but there is no nvcc on the PATH or in /usr/local/cuda/bin; install "
      "the CUDA Toolkit (12.4 or newer), pass -DCMAKE_CUDA_COMPILER=/path/to/nvcc, or remove cuda from PLATFORM")
  endif()
  set(CMAKE_CUDA_COMPILER ${CONCORD_NVCC})
endif()
option(CONCORD_CHECK_KERNELS "Compile kernels to know that they compile, for one architecture and not optimised" OFF)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  if(CONCORD_CHECK_KERNELS)  # the oldest, whose instructions the others have too
    set(CMAKE_CUDA_ARCHITECTURES 80-real)
  else()
    # Machine code for the A100 and the H100/H200; the PTX of the last for what comes after.
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
endif()
if(NOT CONCORD_SANITIZE)  # there no kernel is compiled, see backends/cuda
  enable_language(CUDA)
endif()
find_package(CUDAToolkit 12.4 REQUIRED)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know that nvcc has had C++20 since CUDA 12
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
if(CONCORD_CHECK_KERNELS)
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcicc -O0 -Xptxas -O0>")
endif()
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()

function(concord_find_nccl_header)
  set(site_packages)
  file(GLOB site_packages ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages)
  foreach(torch IN ITEMS "${CONCORD_TORCH}" "$ENV{CONCORD_TORCH}")
    if(torch)
      list(APPEND site_packages ${torch}/..)
    endif()
  endforeach()
  find_program(CONCORD_PYTHON3 python3)
  if(CONCORD_PYTHON3)
    execute_process(COMMAND ${CONCORD_PYTHON3} -c "import site; print(';'.join(site.getsitepackages()))"
      OUTPUT_VARIABLE of_python OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND site_packages ${of_python})
  endif()
  list(TRANSFORM site_packages APPEND /nvidia/nccl/include)
  find_path(CONCORD_NCCL_INCLUDE nccl.h HINTS ${NCCL_ROOT}/include $ENV{NCCL_ROOT}/include ${site_packages}
    ${CUDAToolkit_INCLUDE_DIRS})
  if(NOT CONCORD_NCCL_INCLUDE)
    message(FATAL_ERROR "PLATFORM includes cuda, but nccl.h was not found; run 'pip install nvidia-nccl-cu13', install "
      "libnccl-dev, or pass -DNCCL_ROOT=/folder/with/include/nccl.h. Looked in: ${site_packages}")
  endif()
  file(STRINGS ${CONCORD_NCCL_INCLUDE}/nccl.h version REGEX "^#define NCCL_(MAJOR|MINOR) +[0-9]+")
  string(REGEX REPLACE "[^0-9;]" "" version "${version}")
  string(REPLACE ";" "." version "${version}")
  if(version VERSION_LESS 2.19 OR version VERSION_GREATER_EQUAL 2.31)
    message(FATAL_ERROR "${CONCORD_NCCL_INCLUDE}/nccl.h is NCCL ${version}; 2.19 to 2.30 are supported")
  endif()
  message(STATUS "NCCL header: ${version} in ${CONCORD_NCCL_INCLUDE}")
endfunction()
concord_find_nccl_header()
