# Tests of the finders torch.cmake and ascend.cmake: cmake -DSCRATCH=folder -P find_test.cmake. Each case configures a
# small project in a separate process and compares its output.
cmake_minimum_required(VERSION 3.25)
set(here ${CMAKE_CURRENT_LIST_DIR})
file(REMOVE_RECURSE "${SCRATCH}")

# expect(CASE WORDS [arguments of cmake]): configures a project that includes |finder|; WORDS must be in its output.
# Words that begin with "error: " are expected from a run that must fail.
function(expect case words)
  set(folder "${SCRATCH}/${case}")
  file(WRITE "${folder}/CMakeLists.txt"
    "cmake_minimum_required(VERSION 3.25)\nproject(Case LANGUAGES NONE)\ninclude(\"${here}/${finder}.cmake\")\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=CONCORD_TORCH --unset=CONCORD_TORCH_NPU --unset=ASCEND_HOME_PATH
    ${CMAKE_COMMAND} -S "${folder}" -B "${folder}/build" ${ARGN}
    OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE code)
  set(wanted 0)
  if(words MATCHES "^error: (.*)$")
    set(words "${CMAKE_MATCH_1}")
    set(wanted 1)
  endif()
  string(REGEX REPLACE "[ \n]+" " " flat "${said}")  # CMake wraps its messages
  string(FIND "${flat}" "${words}" found)
  if(NOT code EQUAL wanted OR found EQUAL -1)
    message(FATAL_ERROR "${finder}, ${case}: expected code ${wanted} and '${words}', got code ${code} and:\n${said}")
  endif()
endfunction()

# fake_torch(FOLDER VERSION...): creates the files that a wheel must have.
function(fake_torch folder major minor)
  foreach(file IN ITEMS include/ATen/ATen.h lib/libtorch_cpu.so lib/libc10.so)
    file(WRITE "${folder}/${file}" "")
  endforeach()
  file(WRITE "${folder}/include/torch/headeronly/version.h"
    "#define TORCH_VERSION_MAJOR ${major}\n#define TORCH_VERSION_MINOR ${minor}\n#define TORCH_VERSION_PATCH 0\n")
endfunction()

set(finder torch)
expect(nowhere "error: ./run build installs torch into .venv")
expect(optional "Configuring done" -DCONCORD_TORCH_OPTIONAL=ON)
expect(empty_folder "error: there is no include/ATen/ATen.h in it" -DCONCORD_TORCH=${SCRATCH})
fake_torch("${SCRATCH}/old/torch" 2 4)
expect(too_old "error: torch 2.4.0 in '${SCRATCH}/old/torch' is too old; Concord needs 2.11"
  -DCONCORD_TORCH=${SCRATCH}/old/torch)
fake_torch("${SCRATCH}/new one/torch" 2 13)
expect(named "libtorch 2.13.0: ${SCRATCH}/new one/torch" "-DCONCORD_TORCH=${SCRATCH}/new one/torch")
expect(of_an_installation "libtorch 2.13.0" "-DCONCORD_TORCH=${SCRATCH}/new one/torch" -DCONCORD_TORCH_BUILT_WITH=2.13.1)
expect(another_version "error: is torch 2.13.0, but this installation of Concord was compiled with 2.12.0"
  "-DCONCORD_TORCH=${SCRATCH}/new one/torch" -DCONCORD_TORCH_BUILT_WITH=2.12.0)
expect(not_named "error: Concord's core and trainer need libtorch 2.12.0" -DCONCORD_TORCH_BUILT_WITH=2.12.0)
fake_torch("${SCRATCH}/venv/.venv/lib/python3.12/site-packages/torch" 2 13)
expect(venv "libtorch 2.13.0: ${SCRATCH}/venv/.venv/lib")

set(finder ascend)
expect(no_cann "CANN headers: none")
expect(wrong_home "error: but there is no include/acl/acl.h in it" -DASCEND_HOME_PATH=${SCRATCH})
file(WRITE "${SCRATCH}/cann/aarch64-linux/include/acl/acl.h" "")
expect(home "CANN headers: ${SCRATCH}/cann/aarch64-linux/include" -DASCEND_HOME_PATH=${SCRATCH}/cann)
file(WRITE "${SCRATCH}/new one/torch_npu/include/third_party/acl/inc/acl/acl.h" "")
expect(wheel "CANN headers: ${SCRATCH}/new one/torch_npu/include/third_party/acl/inc"
  "-DCONCORD_TORCH=${SCRATCH}/new one/torch")
