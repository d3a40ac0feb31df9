# How this project makes its libraries, plugins, tests and benchmarks. One place for flags; folders only list sources.
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
  # Paths count from the checkout, so that another clone of the same sources finds what this one has compiled.
  set(launcher env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()
find_package(Threads REQUIRED)
include(plugin)  # concord_plugin(NAME SOURCES ... LIBRARIES ...), which is installed for other projects too

# concord_library(NAME SOURCES ... LIBRARIES ...): a static library, called Concord::NAME by its users.
function(concord_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(concord_${name} STATIC ${ARG_SOURCES})
  add_library(Concord::${name} ALIAS concord_${name})
  set_target_properties(concord_${name} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(concord_${name} PUBLIC ${ARG_LIBRARIES}
    PRIVATE $<BUILD_INTERFACE:concord_build_flags>)  # our warnings are not for those who link it
endfunction()

# concord_test(NAME SOURCES ... LIBRARIES ... LABELS ... PLUGINS ... TIMEOUT ...): a GoogleTest program; each TEST is a
# ctest. A program without tests is one that fails. PLUGINS are built first. Labels with a meaning: serial (nothing runs
# beside it), no-asan and no-tsan (left out of that sanitizer's build), keeps-memory (not searched for leaks); give the
# reason beside it.
function(concord_test name)
  if(NOT CONCORD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBRARIES;LABELS;PLUGINS" ${ARGN})
  find_package(GTest REQUIRED)
  include(GoogleTest)
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  target_link_libraries(${name} PRIVATE
    ${ARG_LIBRARIES} GTest::gtest GTest::gmock GTest::gtest_main concord_build_flags)
  if(CONCORD_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)  # what is tested is optimised; optimising the test is lost time
  endif()
  foreach(plugin IN LISTS ARG_PLUGINS)
    add_dependencies(${name} concord_plugin_${plugin})
  endforeach()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)  # a hang ends the run; no test's verdict depends on it
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  # Looking for leaks takes seconds a process on ARM, so there a program is one test; see the preset asan.
  if(CONCORD_SANITIZE STREQUAL "address" AND "unit" IN_LIST ARG_LABELS AND NOT "keeps-memory" IN_LIST ARG_LABELS)
    add_test(NAME ${name}.all_without_leaks COMMAND ${name})
    set_tests_properties(${name}.all_without_leaks PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
      ENVIRONMENT "ASAN_OPTIONS=detect_leaks=1;CONCORD_PLUGIN_PATH=${PROJECT_BINARY_DIR}/lib")
    return()
  endif()
  # Pretty values of parameters may hold addresses, which are others in each run.
  gtest_discover_tests(${name} TEST_PREFIX "${name}." NO_PRETTY_VALUES DISCOVERY_TIMEOUT 300)
  concord_test_properties(${name} "${ARG_LABELS}" ${ARG_TIMEOUT})
endfunction()

# The properties of the tests that were discovered. gtest_discover_tests(PROPERTIES) loses all of them where one is a
# list, so they are set by a file that ctest reads after the one with the tests.
function(concord_test_properties name labels timeout)
  set(serial FALSE)
  if("serial" IN_LIST labels)
    set(serial TRUE)
  endif()
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}_properties.cmake)
  file(CONFIGURE OUTPUT ${file} @ONLY CONTENT [[
if(@name@_TESTS)
  set_tests_properties(${@name@_TESTS} PROPERTIES LABELS "@labels@" TIMEOUT @timeout@ RUN_SERIAL @serial@
    ENVIRONMENT "CONCORD_PLUGIN_PATH=@PROJECT_BINARY_DIR@/lib")
else()
  file(GLOB discovered "@CMAKE_CURRENT_BINARY_DIR@/@name@*_tests.cmake")
  if(discovered)  # else it was not built, which fails by itself
    add_test(@name@.has_no_tests "@CMAKE_COMMAND@" -E false)
  endif()
endif()
]])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
endfunction()

# concord_benchmark(NAME SOURCES ... LIBRARIES ...): a program in bench/, started by ./run bench. Not part of `all`, which
# is what tests wait for: the target concord_benchmarks builds them.
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
