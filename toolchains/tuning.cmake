# Tuning of compile times: unity batches, optimisation levels per library, precompiled headers.

# GCC collects garbage whenever its heap has doubled, starting at 128 MB: 6 to 10 % of the time of a batch. Starting at
# 1 GB, a batch of core needs a third more memory.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-heapsize=1000000>")
endif()

# concord_links(OUT WANTED LIBRARY...): whether WANTED is one of them or a dependency of one, so that its headers can be
# included.
function(concord_links out wanted)
  set(${out} FALSE PARENT_SCOPE)
  foreach(library IN LISTS ARGN)
    if(library STREQUAL wanted)
      set(${out} TRUE PARENT_SCOPE)
      return()
    endif()
    if(TARGET ${library})
      get_target_property(behind ${library} INTERFACE_LINK_LIBRARIES)
      if(behind)
        concord_links(found ${wanted} ${behind})
        if(found)
          set(${out} TRUE PARENT_SCOPE)
          return()
        endif()
      endif()
    endif()
  endforeach()
endfunction()

# Number of sources per unity batch. Half of the compile time of a source without libtorch is the standard library's
# headers, fmt and JSON, and libtorch's headers take 9 s of a batch (13 batches of 8 sources of core take 242 s of CPU
# time, 7 of 16 take 170), so batches are large: at most 24, and no small last batch.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
function(concord_batches target)
  list(LENGTH ARGN count)
  math(EXPR batches "(${count} + 23) / 24")
  if(count GREATER 16)
    math(EXPR size "(${count} + ${batches} - 1) / ${batches}")
    set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE ${size})
  endif()
endfunction()

# Most libraries call others and loop over little: -O3 made core's batches take a third longer to compile than -O1, and
# steps no faster. Their sources that do loop over memory keep -O3, by concord_loops or LOOPS of concord_library.
set(release_build $<AND:$<CONFIG:Release>,$<NOT:$<BOOL:${CONCORD_SANITIZE}>>>)

# concord_loops(SOURCE... [OPTIONS ...]): sources of the current folder that loop over memory, with their own options.
# Under sanitizers tests spend their time in them.
function(concord_loops)
  cmake_parse_arguments(ARG "" "" "OPTIONS" ${ARGN})
  set_source_files_properties(${ARG_UNPARSED_ARGUMENTS} PROPERTIES SKIP_PRECOMPILE_HEADERS TRUE
    COMPILE_OPTIONS "${ARG_OPTIONS};$<${release_build}:-O3>;$<$<BOOL:${CONCORD_SANITIZE}>:-O1>")
endfunction()

# concord_tune(): compile times of single targets. The top CMakeLists.txt calls it when all targets exist.
function(concord_tune)
  # They read no memory as another type, so the address sanitizer does without the checks of pointers (alignment and
  # others) that are a quarter of their compilation there.
  set(call_others concord_arguments concord_checkpoint concord_cli concord_commands concord_core concord_data_parallel
    concord_launch concord_mesh concord_models concord_optim concord_parallel concord_probe concord_report
    concord_schedule concord_torch_module concord_trackers concord_trainer concord_training_plan)
  concord_tune_targets(${call_others}
    OPTIONS $<$<STREQUAL:${CONCORD_SANITIZE},address>:-fno-sanitize=alignment,null,object-size,vptr>)
  concord_tune_targets(${call_others} concord_base concord_data concord_platform concord_safetensors
      concord_ascend_ops concord_ascend_torch concord_sim_opapi
      concord-cuda-device-test concord_cuda_fake_nccl concord_cuda_fake_runtime concord_cuda_ops concord_plugin_cuda
      concord_plugin_cuda_fake concord_plugin_mutant callback hello pretrain
    OPTIONS $<$<AND:${release_build},$<COMPILE_LANGUAGE:CXX>>:-O1>)
  # Expected values of tests, computed in loops over megabytes: optimised under sanitizers too, and checked by address.
  concord_tune_targets(concord_shm_values OPTIONS -O1 $<$<STREQUAL:${CONCORD_SANITIZE},address>:-fno-sanitize=undefined>)
  concord_tune_targets(concord_header_samples concord_header_samples_torch OPTIONS -O0)  # nothing runs

  # Each all in one batch. CLI11's headers are most of what the subcommands cost: two libraries of about the same cost,
  # for two cores.
  concord_tune_targets(concord_cli concord_commands concord_cuda_ops PROPERTIES UNITY_BUILD_BATCH_SIZE 0)
  # Kernels have constants of their own by the same names; newer CMakes would compile .cu files together too. missing.cpp
  # defines names that the other sources declare, with other arguments.
  concord_compile_separately(concord_cuda_ops "\\.cu$")
  concord_compile_separately(concord_sim_opapi "missing\\.cpp$")

  set(with_torch)
  foreach(whole IN ITEMS concord_core concord_trainer)
    if(TARGET ${whole})
      get_target_property(parts ${whole} CONCORD_PARTS)
      list(APPEND with_torch ${parts})
    endif()
  endforeach()
  concord_precompile_torch(${with_torch} concord_probe concord_trainer)
endfunction()

# concord_tune_targets(TARGET... [OPTIONS ...] [PROPERTIES ...]): adds compile options to the targets and sets
# properties, for those of the targets that this build has, and their parts (concord_part).
function(concord_tune_targets)
  cmake_parse_arguments(ARG "" "" "OPTIONS;PROPERTIES" ${ARGN})
  foreach(target IN LISTS ARG_UNPARSED_ARGUMENTS)
    if(NOT TARGET ${target})
      continue()
    endif()
    get_target_property(parts ${target} CONCORD_PARTS)
    foreach(each IN LISTS target parts)
      if(TARGET ${each})
        target_compile_options(${each} PRIVATE ${ARG_OPTIONS})
        if(ARG_PROPERTIES)
          set_target_properties(${each} PROPERTIES ${ARG_PROPERTIES})
        endif()
      endif()
    endforeach()
  endforeach()
endfunction()

# concord_compile_separately(TARGET PATTERN): compiles the sources of TARGET that match PATTERN outside of its batches.
function(concord_compile_separately target pattern)
  if(NOT TARGET ${target})
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "${pattern}")
  get_target_property(folder ${target} SOURCE_DIR)
  list(TRANSFORM sources PREPEND ${folder}/)
  set_source_files_properties(${sources} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# concord_precompile_torch(TARGET...): precompiles the headers that most sources with libtorch include, once for all of
# the targets. Only for Clang, which loads lazily what a source uses: a batch of core takes 9.0 s of CPU time instead of
# 17.1, and the headers 15.2 once. GCC loads all of them every time, which costs as much as it saves.
function(concord_precompile_torch carrier)
  if(NOT TARGET ${carrier} OR NOT CMAKE_UNITY_BUILD OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    return()
  endif()
  target_precompile_headers(${carrier} PRIVATE <ATen/core/Tensor.h> <torch/csrc/autograd/custom_function.h>
    <torch/library.h> <fmt/format.h> <nlohmann/json.hpp>)
  foreach(target IN LISTS ARGN)
    target_precompile_headers(${target} REUSE_FROM ${carrier})
  endforeach()
endfunction()

# concord_precompile_plain(TARGET LIBRARY...): like concord_precompile_torch, for code without libtorch in builds under
# sanitizers: the standard library and, if TARGET links fmt, fmt and JSON. An empty library carries them, one with fmt
# and one without, whose definitions differ. A source with its own options sets SKIP_PRECOMPILE_HEADERS.
function(concord_precompile_plain target)
  concord_links(torch Concord::torch ${ARGN})
  if(torch OR NOT CMAKE_UNITY_BUILD OR NOT CONCORD_SANITIZE OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    return()
  endif()
  set(carrier concord_plain_headers)
  set(headers <algorithm> <array> <atomic> <charconv> <chrono> <cmath> <condition_variable> <deque> <filesystem> <fstream>
    <functional> <limits> <map> <memory> <mutex> <numeric> <optional> <random> <regex> <set> <span> <sstream> <stdexcept>
    <string> <string_view> <thread> <tuple> <unordered_map> <utility> <vector>)
  set(libraries)
  concord_links(fmt fmt::fmt ${ARGN})
  if(fmt)
    string(APPEND carrier _fmt)
    list(APPEND headers <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp>)
    set(libraries fmt::fmt nlohmann_json::nlohmann_json)
  endif()
  if(NOT TARGET ${carrier})
    set(source ${PROJECT_BINARY_DIR}/${carrier}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "")
    add_library(${carrier} OBJECT EXCLUDE_FROM_ALL ${source})
    target_link_libraries(${carrier} PRIVATE ${libraries} concord_build_flags)
    target_precompile_headers(${carrier} PRIVATE ${headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${carrier})
endfunction()

# concord_precompile_test(NAME LIBRARY...): GoogleTest's headers (and Tensor.h, if used) take more than half of a test's
# compile time: precompiled once for all programs of a build. They have to be compiled with the tests' own flags, for an
# executable, so an empty program carries them. Off if sources compile separately, where each must include
# what it uses.
function(concord_precompile_test name)
  if(NOT CMAKE_UNITY_BUILD)
    return()
  endif()
  concord_links(torch Concord::torch ${ARGN})
  set(carrier concord_test_headers)
  set(headers <gmock/gmock.h> <gtest/gtest.h>)
  set(libraries GTest::gmock GTest::gtest)
  if(torch)
    string(APPEND carrier _torch)
    list(APPEND headers <ATen/core/Tensor.h>)
    list(APPEND libraries Concord::torch)
  endif()
  if(NOT TARGET ${carrier})
    set(source ${PROJECT_BINARY_DIR}/${carrier}.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "int main() {}\n")
    add_executable(${carrier} EXCLUDE_FROM_ALL ${source})
    set_target_properties(${carrier} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    target_link_libraries(${carrier} PRIVATE ${libraries} concord_build_flags)
    target_compile_options(${carrier} PRIVATE ${CONCORD_TEST_OPTIONS})
    target_precompile_headers(${carrier} PRIVATE ${headers})
  endif()
  target_precompile_headers(${name} REUSE_FROM ${carrier})
endfunction()

# Only the tested code is optimised: optimising the test, or checking it for undefined behaviour, costs time for
# nothing. Its accesses are checked by calls instead of code in place: that compiles a tenth faster.
set(CONCORD_TEST_OPTIONS -O0 $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
if(CONCORD_SANITIZE STREQUAL "address")
  list(APPEND CONCORD_TEST_OPTIONS -fno-sanitize=undefined -g0
    $<$<CXX_COMPILER_ID:GNU>:--param=asan-instrumentation-with-call-threshold=0>
    "$<$<CXX_COMPILER_ID:Clang>:SHELL:-mllvm -asan-instrumentation-with-call-threshold=0>")
endif()
