# Installs a build into a scratch prefix, moves the prefix, and uses it from projects outside the tree: a plugin that is
# built with the author kit alone, a copy of backends/null, and programs that find the installed plugins by themselves.
cmake_minimum_required(VERSION 3.25)
set(here "${CMAKE_CURRENT_LIST_DIR}")
file(REMOVE_RECURSE "${SCRATCH}/first" "${SCRATCH}/moved" "${SCRATCH}/null" "${SCRATCH}/plugin" "${SCRATCH}/program"
  "${SCRATCH}/refused" "${SCRATCH}/run" "${SCRATCH}/runpath")
set(prefix "${SCRATCH}/moved")

# expect(CODE WORDS command...): the command must exit with CODE and print WORDS, however its lines are wrapped.
function(expect code words)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE ended)
  string(REGEX REPLACE "[ \n]+" " " flat "${said}")
  string(FIND "${flat}" "${words}" found)
  string(REPLACE ";" " " command "${ARGN}")
  if(NOT ended EQUAL code OR found EQUAL -1)
    message(FATAL_ERROR "expected code ${code} and '${words}' from: ${command}\ngot code ${ended} and:\n${said}")
  endif()
  message(STATUS "as expected: ${command}")
endfunction()

# configure(FOLDER SOURCE): the arguments of a command that configures SOURCE against the installation in FOLDER.
# Without a build type, that is without optimisation: what is tested is that it compiles, links and runs. With the
# tree's ccache, if it has one: what was compiled earlier from the same headers is not compiled again.
macro(configure folder source)
  set(configure ${CMAKE_COMMAND} -G ${GENERATOR} -S ${source} -B ${SCRATCH}/${folder} -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_PREFIX_PATH=${prefix} "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}")
endmacro()
function(build_project folder source)
  configure(${folder} ${source})
  expect(0 "" ${configure} ${ARGN})
  expect(0 "" ${CMAKE_COMMAND} --build ${SCRATCH}/${folder})
endfunction()

expect(0 "" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/first)
file(RENAME "${SCRATCH}/first" "${prefix}")

# A path of the original prefix, or of the tree, would fail after these are gone.
file(GLOB package "${prefix}/${LIBDIR}/cmake/Concord/*.cmake")
foreach(file IN LISTS package)
  file(READ ${file} text)
  foreach(place IN ITEMS "${SCRATCH}/first" "${ROOT}")
    string(FIND "${text}" "${place}" found)
    if(NOT found EQUAL -1)
      message(FATAL_ERROR "${file} names ${place}; the installation cannot be moved")
    endif()
  endforeach()
endforeach()

# --- plugins ----------------------------------------------------------------------------------------------------------
build_project(plugin ${here}/plugin)
execute_process(COMMAND nm -D --defined-only ${SCRATCH}/plugin/libconcord_tiny.so OUTPUT_VARIABLE symbols)
string(REGEX MATCHALL "[^ \n]+\n" names "${symbols}")
if(NOT names STREQUAL "concord_plugin_open\n")
  message(FATAL_ERROR "libconcord_tiny.so exports more than concord_plugin_open:\n${symbols}")
endif()
file(COPY ${ROOT}/backends/null DESTINATION ${SCRATCH})
build_project(null/build ${SCRATCH}/null)

# --- programs ---------------------------------------------------------------------------------------------------------
set(components sdk platform)
if(WITH_TORCH)
  list(APPEND components core trainer)
endif()
list(JOIN components ", " listed)
configure(refused ${here}/program)
expect(1 "There is no component 'nothing' in this installation of Concord, which has: ${listed}." ${configure}
  -DCOMPONENTS=platform,nothing)
list(JOIN components "," components)
build_project(program ${here}/program -DCOMPONENTS=${components} -DCONCORD_TORCH=${TORCH})

set(environment ${CMAKE_COMMAND} -E env --unset=CONCORD_PLUGIN_PATH --unset=CONCORD_TORCH OMP_NUM_THREADS=1)
set(on_cpu ${environment} CONCORD_PLATFORM=cpu)
expect(0 "cpu: all_reduce of 3 on 1 rank: 1 2 3" ${on_cpu} ${SCRATCH}/program/program)
expect(0 "tiny: all_reduce of 3 on 1 rank: 1 2 3"
  ${environment} CONCORD_PLATFORM=${SCRATCH}/plugin/libconcord_tiny.so ${SCRATCH}/program/program)
expect(0 "tiny: all_reduce of 3 on 1 rank: 1 2 3"
  ${environment} CONCORD_PLUGIN_PATH=${SCRATCH}/plugin CONCORD_PLATFORM=tiny ${SCRATCH}/program/program)
if(WITH_TORCH)
  expect(0 "cpu: libtorch's device is cpu" ${on_cpu} ${SCRATCH}/program/core_program)
  set(golden ${ROOT}/tests/golden)
  expect(0 "trained 2 steps of 50" ${on_cpu} ${SCRATCH}/program/trainer_program --max_steps 50
    --model_config ${golden}/hf/qwen2-tiny --train_data ${golden}/train/tokens.safetensors
    --output_dir ${SCRATCH}/run/callback)
endif()
# The installed program finds the plugins, the conformance kit and libtorch's module next to it by itself; if libtorch
# is that of a checkout, it reports which one it needs.
set(program ${prefix}/bin/concord)
expect(0 "${LIBDIR}/concord/libconcord_cpu.so" ${on_cpu} ${program} platforms)
expect(0 "--platform" ${on_cpu} ${program} conform --help)
if(WITH_TORCH)
  set(train ${program} train --json --nproc 1 --max_steps 2 --output_dir ${SCRATCH}/run)
  expect(0 "finished" ${on_cpu} CONCORD_TORCH=${TORCH} ${train}/named)
  string(FIND "${TORCH}" "${ROOT}/" in_checkout)
  if(in_checkout EQUAL 0)
    expect(1 "is needed: set CONCORD_TORCH=/path/to/site-packages/torch" ${on_cpu} ${train}/found)
  endif()
  expect(1 "cannot be loaded" ${on_cpu} CONCORD_TORCH=${SCRATCH} ${train}/wrong)
endif()

# --- the plugins pass the kit -----------------------------------------------------------------------------------------
set(conform ${environment} ${prefix}/bin/concord-conform --quick --platform)
expect(0 ": conformant" ${conform} ${SCRATCH}/plugin/libconcord_tiny.so --world 1)
expect(1 "has no device" ${conform} ${SCRATCH}/null/build/libconcord_null.so)

# --- RUNPATH ----------------------------------------------------------------------------------------------------------
# runpath(CODE WORDS FOLDER [NOT_IN]): runs the check, which must first fail.
function(runpath code words folder)
  expect(${code} "${words}" ${CMAKE_COMMAND} -DFOLDER=${folder} -DNOT_IN=${ARGN} -P ${here}/runpath.cmake)
endfunction()
file(WRITE ${SCRATCH}/runpath/empty.cpp "")
foreach(case IN ITEMS "relative|lib" "empty|/opt/lib:" "inside|${ROOT}/lib")
  string(REGEX REPLACE "(.*)\\|(.*)" "\\1;\\2" case "${case}")
  list(GET case 0 name)
  list(GET case 1 entries)
  file(MAKE_DIRECTORY ${SCRATCH}/runpath/${name})
  expect(0 "" ${CXX} -shared -Wl,-rpath,${entries} ${SCRATCH}/runpath/empty.cpp -o ${SCRATCH}/runpath/${name}/bad.so)
  runpath(1 "bad.so looks in '${entries}'" ${SCRATCH}/runpath/${name} ${ROOT})
endforeach()
file(REMOVE_RECURSE ${SCRATCH}/runpath)
runpath(0 "programs and libraries" ${prefix} ${ROOT})
runpath(0 "programs and libraries" ${BUILD})
