# Installs a build into a scratch prefix, moves the prefix, and uses it from two projects outside the tree: a plugin
# that is built with the author kit alone, and a program that loads the installed plugin and that one.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE "${SCRATCH}/first" "${SCRATCH}/moved" "${SCRATCH}/plugin" "${SCRATCH}/program")
set(prefix "${SCRATCH}/moved")

# run(WORDS command...): the command has to succeed and to say WORDS.
function(run words)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE code)
  string(FIND "${said}" "${words}" found)
  string(REPLACE ";" " " command "${ARGN}")
  if(NOT code EQUAL 0 OR found EQUAL -1)
    message(FATAL_ERROR "expected '${words}' from: ${command}\ngot code ${code} and:\n${said}")
  endif()
  message(STATUS "fine: ${command}")
endfunction()

# build_project(NAME [arguments]): configures and builds one of the projects beside this file against the installation.
function(build_project name)
  run("" ${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE}/${name} -B ${SCRATCH}/${name} -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_PREFIX_PATH=${prefix} ${ARGN})
  run("" ${CMAKE_COMMAND} --build ${SCRATCH}/${name})
endfunction()

run("" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/first)
file(RENAME "${SCRATCH}/first" "${prefix}")

# Whatever names the place it was installed to, or the tree it came from, breaks where those are gone.
file(GLOB package "${prefix}/${LIBDIR}/cmake/Concord/*.cmake")
foreach(file IN LISTS package)
  file(READ ${file} text)
  foreach(place IN ITEMS "${SCRATCH}/first" "${BUILD}")
    string(FIND "${text}" "${place}" found)
    if(NOT found EQUAL -1)
      message(FATAL_ERROR "${file} names ${place}; the installation cannot be moved")
    endif()
  endforeach()
endforeach()

build_project(plugin)
execute_process(COMMAND nm -D --defined-only ${SCRATCH}/plugin/libconcord_tiny.so OUTPUT_VARIABLE symbols)
string(REGEX MATCHALL "[^ \n]+\n" names "${symbols}")
if(NOT names STREQUAL "concord_plugin_open\n")
  message(FATAL_ERROR "libconcord_tiny.so exports more than concord_plugin_open:\n${symbols}")
endif()

build_project(program -DWITH_CORE=${CORE} -DCONCORD_TORCH=${TORCH})
set(environment ${CMAKE_COMMAND} -E env CONCORD_PLUGIN_PATH=${prefix}/${LIBDIR}/concord)
run("cpu: all_reduce of 3 on 1 rank: 1 2 3" ${environment} CONCORD_PLATFORM=cpu ${SCRATCH}/program/program)
run("tiny: all_reduce of 3 on 1 rank: 1 2 3"
  ${environment} CONCORD_PLATFORM=${SCRATCH}/plugin/libconcord_tiny.so ${SCRATCH}/program/program)
run("tiny: all_reduce of 3 on 1 rank: 1 2 3"
  ${CMAKE_COMMAND} -E env CONCORD_PLUGIN_PATH=${SCRATCH}/plugin CONCORD_PLATFORM=tiny ${SCRATCH}/program/program)
if(CORE)
  run("cpu: libtorch's device is cpu" ${environment} CONCORD_PLATFORM=cpu ${SCRATCH}/program/core_program)
endif()
# The installed program finds the plugins, the conformance kit and libtorch's module beside it without being told.
set(program ${CMAKE_COMMAND} -E env --unset=CONCORD_PLUGIN_PATH CONCORD_PLATFORM=cpu ${prefix}/bin/concord)
run("${LIBDIR}/concord/libconcord_cpu.so" ${program} platforms)
run("--platform" ${program} conform --help)
if(CORE)
  run("finished" ${program} train --json --max_steps 2 --output_dir ${SCRATCH}/run)
endif()

# check_runpath(FILES...): an empty entry is the current folder, and a relative one lies in it.
function(check_runpath)
  foreach(file IN LISTS ARGN)
    execute_process(COMMAND readelf -d ${file} OUTPUT_VARIABLE said ERROR_QUIET)
    if(NOT said MATCHES "\\((RUNPATH|RPATH)\\)[^[]*\\[([^\n]*)\\]")
      continue()
    endif()
    set(folders "${CMAKE_MATCH_2}")
    if(NOT folders MATCHES "^[/$][^:]*(:[/$][^:]*)*$")
      message(FATAL_ERROR "${file} looks for libraries in '${folders}', a part of which is relative to the current folder")
    endif()
  endforeach()
endfunction()
file(GLOB_RECURSE installed ${prefix}/bin/* ${prefix}/${LIBDIR}/*.so)
file(GLOB built ${BUILD}/bin/* ${BUILD}/lib/*.so ${BUILD}/tests/* ${BUILD}/examples/*)
check_runpath(${installed} ${built})
