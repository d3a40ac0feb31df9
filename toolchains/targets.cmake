# How this project builds its libraries, plugins, tests and benchmarks. Flags are set only here; folders only list
# sources.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths are relative to the checkout, so that another clone of the same sources gets cache hits.
  # ccache requires this sloppiness to cache sources with precompiled headers.
  set(launcher env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()
find_package(Threads REQUIRED)
# Linked statically if possible: wheels use the zlib of the machine they run on, which may lack crc32_combine_gen.
find_library(CONCORD_ZLIB_ARCHIVE libz.a)
if(CONCORD_ZLIB_ARCHIVE)
  set(ZLIB_USE_STATIC_LIBS ON)
endif()
include(tuning)
include(plugin)  # concord_plugin(NAME SOURCES ... LIBRARIES ...), which is installed for other projects too

# concord_library(NAME SOURCES ... LIBRARIES ... LOOPS ...): a static library, called Concord::NAME by its users. LOOPS
# are sources that loop over memory, in a library that is compiled with -O1 (tuning.cmake): compiled together, with -O3.
# concord_part adds the sources of other folders.
function(concord_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES;LOOPS" ${ARGN})
  add_library(concord_${name} STATIC ${ARG_SOURCES})
  add_library(Concord::${name} ALIAS concord_${name})
  set_target_properties(concord_${name} PROPERTIES EXPORT_NAME ${name} LINKER_LANGUAGE CXX
    CONCORD_LIBRARIES "${ARG_LIBRARIES}" CONCORD_PARTS "")
  target_link_libraries(concord_${name} PUBLIC ${ARG_LIBRARIES}
    PRIVATE $<BUILD_INTERFACE:concord_build_flags>)  # not propagated to users of the library
  concord_compile(concord_${name} SOURCES ${ARG_SOURCES} LIBRARIES ${ARG_LIBRARIES})
  if(ARG_LOOPS)
    add_library(concord_${name}_loops OBJECT ${ARG_LOOPS})
    target_link_libraries(concord_${name}_loops PRIVATE ${ARG_LIBRARIES} concord_build_flags)
    concord_compile(concord_${name}_loops SOURCES ${ARG_LOOPS} LIBRARIES ${ARG_LIBRARIES})
    target_sources(concord_${name} PRIVATE $<TARGET_OBJECTS:concord_${name}_loops>)
  endif()
endfunction()

# concord_part(WHOLE NAME SOURCES ... LIBRARIES ...): the sources of a folder that are part of the library WHOLE,
# compiled as the object library concord_WHOLE_NAME. LIBRARIES are those that WHOLE does not have yet. Does nothing if
# this build has no WHOLE: Concord::core and Concord::trainer need libtorch.
function(concord_part whole name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT TARGET concord_${whole})
    return()
  endif()
  set(part concord_${whole}_${name})
  get_target_property(libraries concord_${whole} CONCORD_LIBRARIES)
  list(APPEND libraries ${ARG_LIBRARIES})
  add_library(${part} OBJECT ${ARG_SOURCES})
  target_link_libraries(${part} PRIVATE ${libraries} concord_build_flags)
  concord_compile(${part} SOURCES ${ARG_SOURCES} LIBRARIES ${libraries})
  target_sources(concord_${whole} PRIVATE $<TARGET_OBJECTS:${part}>)
  target_link_libraries(concord_${whole} PUBLIC ${ARG_LIBRARIES})
  set_property(TARGET concord_${whole} APPEND PROPERTY CONCORD_PARTS ${part})
endfunction()

# concord_compile(TARGET SOURCES ... LIBRARIES ...): how the sources of a library or of a part of one are compiled.
function(concord_compile target)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  concord_batches(${target} ${ARG_SOURCES})
  # libtorch's templates take a quarter longer to compile under the undefined-behaviour sanitizer. It covers the code
  # that parses files and moves bytes, which does not use libtorch.
  concord_links(torch Concord::torch ${ARG_LIBRARIES})
  if(torch AND CONCORD_SANITIZE STREQUAL "address")
    target_compile_options(${target} PRIVATE -fno-sanitize=undefined)
  endif()
  concord_precompile_plain(${target} ${ARG_LIBRARIES})
endfunction()

# concord_install_library(TARGET): installs TARGET, a library that is loaded at run time, among the plugins.
function(concord_install_library target)
  install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/concord)
  set_property(GLOBAL APPEND PROPERTY concord_runtime ${target})
endfunction()

# concord_install_with_torch(TARGET): installs TARGET, which links libtorch, among the plugins. A libtorch that the user
# named stays where it is, so TARGET looks for it there after the installation too. That of a checkout's .venv is
# removed with the checkout: the installed TARGET has no path, and the program finds libtorch by CONCORD_TORCH
# (trainer/torch_module/libtorch.h). CMake's own replacement of an RPATH needs one that ends in an empty entry, which
# means the current folder: so it is the same before and after, or removed. An installation that knows where libtorch
# will be sets CONCORD_TORCH_RPATH (toolchains/package/CMakeLists.txt).
function(concord_install_with_torch target)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "${CONCORD_TORCH_FOUND}/lib" BUILD_WITH_INSTALL_RPATH ON)
  concord_install_library(${target})
  cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${CONCORD_TORCH_FOUND}" NORMALIZE in_checkout)
  install(CODE "set(file \"${CMAKE_INSTALL_LIBDIR}/concord/$<TARGET_FILE_NAME:${target}>\")
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY \"\${CMAKE_INSTALL_PREFIX}\")
    if(CONCORD_TORCH_RPATH)
      file(RPATH_SET FILE \"\$ENV{DESTDIR}\${file}\" NEW_RPATH \"\${CONCORD_TORCH_RPATH}\")
    elseif(${in_checkout} STREQUAL ON)
      file(RPATH_REMOVE FILE \"\$ENV{DESTDIR}\${file}\")
    endif()")
endfunction()

# All tests of the first tier in this build, with the programs that they start: the target of `./run test`.
if(CONCORD_TESTS)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  # The interpreter itself, not a wrapper script (pyenv's), which takes 0.1 s of a core for each of some 200 starts.
  execute_process(COMMAND ${Python3_EXECUTABLE} -c "import sys; print(sys.executable)" OUTPUT_VARIABLE python3_itself
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(Python3_EXECUTABLE ${python3_itself})
  add_custom_target(concord_tests)
  add_custom_target(concord_slow_tests)  # tests with the label slow: see concord_test
  add_custom_target(concord_sanitized_tests)  # tests with the label sanitized
  add_custom_target(concord_exhaustive_tests)  # tests with the label exhaustive
  # For ./run test FILTER, which builds only what the matching tests need: lines TEST|TARGETS|SOURCES.
  set(CONCORD_TEST_LIST ${PROJECT_BINARY_DIR}/tests.txt)
  file(WRITE ${CONCORD_TEST_LIST} "")
endif()

# concord_test_group(OUT LABELS...): the target that builds a test with these labels. A test with the label sanitized is
# left to the address sanitizer's build: compiling and running it twice finds nothing more. Only `./run test FILTER` and
# `./run test --all` run it in the release build. One with the label slow is left to `./run test --sanitizers`, one with
# the label exhaustive to `./run test --all`.
function(concord_test_group out)
  set(${out} concord_tests PARENT_SCOPE)
  if("exhaustive" IN_LIST ARGN)
    set(${out} concord_exhaustive_tests PARENT_SCOPE)
  elseif(NOT CONCORD_SANITIZE AND "sanitized" IN_LIST ARGN)
    set(${out} concord_sanitized_tests PARENT_SCOPE)
  elseif(NOT CONCORD_SANITIZE AND "slow" IN_LIST ARGN)
    set(${out} concord_slow_tests PARENT_SCOPE)
  endif()
endfunction()

# concord_searches_leaks(OUT LABELS...): whether a program's memory is searched for leaks when it exits. If the address
# sanitizer's allocator has a table of all addresses (GCC on 64-bit ARM), that takes 4.4 s of CPU time even in an empty
# program (with Clang 8 ms): there only programs with the label leaks are, which handle memory and handles of C
# interfaces.
function(concord_searches_leaks out)
  set(${out} FALSE PARENT_SCOPE)
  if(NOT CONCORD_SANITIZE STREQUAL "address" OR NOT "unit" IN_LIST ARGN OR "keeps-memory" IN_LIST ARGN)
    return()
  endif()
  if("leaks" IN_LIST ARGN OR NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64" OR CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    set(${out} TRUE PARENT_SCOPE)
  endif()
endfunction()

# concord_skipped_test(NAME LABELS...): a test that is skipped, with the reason CONCORD_MISSING. A folder whose tests
# need something that this machine lacks sets CONCORD_MISSING to the reason and still declares its tests: concord_test
# and concord_check then call this function, so that ./run test lists and counts them.
function(concord_skipped_test name)
  add_test(NAME ${name} COMMAND sh -c "echo \"$1\"; exit 77" sh "${CONCORD_MISSING}")
  set_tests_properties(${name} PROPERTIES LABELS "${ARGN}" SKIP_RETURN_CODE 77)
  file(APPEND ${CONCORD_TEST_LIST} "${name}||\n")
endfunction()

# concord_test(NAME SOURCES ... LIBRARIES ... LABELS ... PLUGINS ... TIMEOUT ... SHARDS n COST s ISOLATED ARGUMENTS
# ...): a GoogleTest program, run as one test of ctest (toolchains/testing/run_test_program.py): one process, which loads
# libtorch once. SHARDS divides a long program over n processes. COST is the approximate duration in seconds: ctest
# starts the longest test first, in a fresh clone too. ISOLATED runs each TEST in its own process: only for tests that
# change state that a process cannot restore. A program without tests fails. PLUGINS are built first. The variable
# CONCORD_TEST_ENVIRONMENT of a folder is added to the environment of its programs. Labels with a meaning:
#   serial         no other test runs in parallel with it
#   slow           run by `./run test --sanitizers`, not by `./run test`
#   exhaustive     run by `./run test --all` only
#   no-asan        left out of the address sanitizer's build: arithmetic on values, or the reason next to the label
#   cores          its ranks use all cores, so two such tests never run at once. This is a resource lock of ctest,
#                  because a test that needs several of ctest's slots waits until no other test is left
#   threads        run under the thread sanitizer too, which finds nothing in code of one thread
#   keeps-memory   not searched for leaks
#   leaks          see concord_searches_leaks
#   sanitized      see concord_test_group. Unit tests that run under the address sanitizer and do not use libtorch get
#                  this label automatically; tests with libtorch set it if their values do not depend on optimisation
function(concord_test name)
  if(NOT CONCORD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "ISOLATED" "TIMEOUT;SHARDS;COST" "SOURCES;LIBRARIES;LABELS;PLUGINS;ARGUMENTS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  set(runs TRUE)
  if((CONCORD_SANITIZE STREQUAL "address" AND "no-asan" IN_LIST ARG_LABELS)
      OR (CONCORD_SANITIZE STREQUAL "thread" AND NOT "threads" IN_LIST ARG_LABELS))
    set(runs FALSE)
  endif()
  concord_links(torch Concord::torch ${ARG_LIBRARIES})
  if("unit" IN_LIST ARG_LABELS AND NOT "no-asan" IN_LIST ARG_LABELS AND NOT torch)
    list(APPEND ARG_LABELS sanitized)
  endif()
  if(CONCORD_MISSING)
    if(runs)
      concord_skipped_test(${name} ${ARG_LABELS})
    endif()
    return()
  endif()
  find_package(GTest REQUIRED)
  add_executable(${name} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  concord_batches(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_link_libraries(${name} PRIVATE
    ${ARG_LIBRARIES} GTest::gtest GTest::gmock GTest::gtest_main concord_build_flags)
  target_compile_options(${name} PRIVATE ${CONCORD_TEST_OPTIONS})
  concord_precompile_test(${name} ${ARG_LIBRARIES})
  foreach(plugin IN LISTS ARG_PLUGINS)
    add_dependencies(${name} concord_plugin_${plugin})
  endforeach()
  if(NOT runs)
    return()
  endif()
  concord_test_group(group ${ARG_LABELS})
  add_dependencies(${group} ${name})
  list(TRANSFORM ARG_SOURCES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ REGEX "^[^/$]" OUTPUT_VARIABLE sources)
  file(APPEND ${CONCORD_TEST_LIST} "${name}|${name}|${sources}\n")
  concord_run_test_program(${name} $<TARGET_FILE:${name}> ${ARG_ARGUMENTS} LABELS ${ARG_LABELS} TIMEOUT "${ARG_TIMEOUT}"
    ENVIRONMENT ${CONCORD_TEST_ENVIRONMENT}
    SHARDS "${ARG_SHARDS}" COST "${ARG_COST}" ISOLATED "${ARG_ISOLATED}")
endfunction()

# concord_run_test_program(NAME PROGRAM [ARGUMENT...] LABELS ... ENVIRONMENT ... TIMEOUT s SHARDS n COST s ISOLATED
# bool): the test NAME, which runs a GoogleTest program.
function(concord_run_test_program name program)
  cmake_parse_arguments(ARG "" "TIMEOUT;SHARDS;COST;ISOLATED" "LABELS;ENVIRONMENT" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)  # a hang ends the run; no test's verdict depends on it
  endif()
  if(NOT ARG_SHARDS OR CONCORD_SANITIZE STREQUAL "address")  # every process is searched for leaks there
    set(ARG_SHARDS 1)
  endif()
  set(options --timeout ${ARG_TIMEOUT})
  if(ARG_ISOLATED)
    list(APPEND options --isolated)
  endif()
  set(environment "CONCORD_PLUGIN_PATH=${PROJECT_BINARY_DIR}/lib" ${ARG_ENVIRONMENT})
  concord_searches_leaks(searched ${ARG_LABELS})
  if(searched)
    list(APPEND environment ASAN_OPTIONS=detect_leaks=1:allow_addr2line=1)  # otherwise see the preset asan
  endif()
  math(EXPR last "${ARG_SHARDS} - 1")
  foreach(shard RANGE ${last})
    set(test ${name})
    set(sharded)
    if(ARG_SHARDS GREATER 1)
      set(test ${name}.${shard})
      set(sharded GTEST_TOTAL_SHARDS=${ARG_SHARDS} GTEST_SHARD_INDEX=${shard})
    endif()
    add_test(NAME ${test} COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/toolchains/testing/run_test_program.py
      --results ${PROJECT_BINARY_DIR}/test-results/${test}.json ${options} ${name} ${program} ${ARG_UNPARSED_ARGUMENTS})
    math(EXPR limit "${ARG_TIMEOUT} + 60")  # the script's own limit expires first, and reports the test that hangs
    set_tests_properties(${test} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${limit} ENVIRONMENT "${environment};${sharded}")
    if("serial" IN_LIST ARG_LABELS)
      set_tests_properties(${test} PROPERTIES RUN_SERIAL TRUE)
    endif()
    if("cores" IN_LIST ARG_LABELS)
      set_tests_properties(${test} PROPERTIES RESOURCE_LOCK cores)
    endif()
    if(ARG_COST)
      set_tests_properties(${test} PROPERTIES COST ${ARG_COST})
    endif()
  endforeach()
endfunction()

# concord_check(NAME COMMAND ... LABELS ... ENVIRONMENT ... PROPERTIES ... NEEDS target... TIMEOUT s OUTPUT pattern): a
# test that runs another program, built from the targets NEEDS. Exit code 77 means skipped. OUTPUT is a regular
# expression that must also match its output; COMMAND is then a path. In a sanitizer's build only with the label asan or
# threads: most of these start programs whose parts are tested there.
function(concord_check name)
  if(NOT CONCORD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT;OUTPUT" "COMMAND;LABELS;ENVIRONMENT;PROPERTIES;NEEDS" ${ARGN})
  if((CONCORD_SANITIZE STREQUAL "address" AND NOT "asan" IN_LIST ARG_LABELS)
      OR (CONCORD_SANITIZE STREQUAL "thread" AND NOT "threads" IN_LIST ARG_LABELS))
    return()
  endif()
  if(CONCORD_MISSING)
    concord_skipped_test(${name} ${ARG_LABELS})
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)
  endif()
  if(ARG_OUTPUT)
    list(PREPEND ARG_COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/toolchains/testing/expect_output.py "${ARG_OUTPUT}")
  endif()
  add_test(NAME ${name} COMMAND ${ARG_COMMAND})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77
    ENVIRONMENT "${ARG_ENVIRONMENT}" ${ARG_PROPERTIES})
  if(ARG_NEEDS)
    concord_test_group(group ${ARG_LABELS})
    add_dependencies(${group} ${ARG_NEEDS})
  endif()
  file(APPEND ${CONCORD_TEST_LIST} "${name}|${ARG_NEEDS}|\n")
endfunction()

# concord_benchmark(NAME SOURCES ... LIBRARIES ...): a program in bench/, started by ./run bench. Not part of `all`,
# which is what tests wait for: the target concord_benchmarks builds them.
function(concord_benchmark name)
  if(NOT CONCORD_BENCHMARKS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES;PLUGINS" ${ARGN})
  add_executable(${name} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
  if(NOT TARGET concord_benchmarks)
    add_custom_target(concord_benchmarks)
  endif()
  add_dependencies(concord_benchmarks ${name})
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} concord_build_flags)
  foreach(plugin IN LISTS ARG_PLUGINS)
    add_dependencies(${name} concord_plugin_${plugin})
  endforeach()
endfunction()
