# The version of this checkout: 0.1.0 for the commit with the tag v0.1.0, 0.1.0.dev1181+g<commit> for others (.dirty
# with changes that are not committed), 0.1.0+unknown without git. 0.1.0 is that of project() in CMakeLists.txt.
#
# cmake -DROOT=... -P version.cmake prints it. With -DOUTPUT=... it writes the source of trainer/cli/program_version.h,
# unless that is the same already; with -DFIXED=ON without the commit.
cmake_minimum_required(VERSION 3.25)
file(STRINGS "${ROOT}/CMakeLists.txt" line REGEX "^project\\(Concord VERSION ")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" version "${line}")
find_program(GIT git)

function(git out)
  execute_process(COMMAND ${GIT} -C "${ROOT}" ${ARGN} OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE code
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(${out} "${text}" PARENT_SCOPE)
  set(code "${code}" PARENT_SCOPE)
endfunction()

# A tree without its own .git may lie inside of another checkout, whose commit is not that of these sources.
set(code 1)
if(GIT AND EXISTS "${ROOT}/.git" AND NOT FIXED)
  git(commit rev-parse --short=10 HEAD)
endif()
if(NOT code EQUAL 0)
  string(APPEND version "+unknown")
else()
  git(tags tag --points-at HEAD --list "v[0-9]*")
  git(count rev-list --count HEAD)
  git(changed status --porcelain --untracked-files=no)
  string(REGEX REPLACE "\n" ";" tags "${tags}")
  if(tags AND NOT "v${version}" IN_LIST tags)
    message(FATAL_ERROR "this commit has the tag '${tags}', but project() in ${ROOT}/CMakeLists.txt has version "
      "${version}; tag it v${version}, or change the version")
  endif()
  if(changed)
    string(APPEND version ".dev${count}+g${commit}.dirty")
  elseif(NOT tags)
    string(APPEND version ".dev${count}+g${commit}")
  endif()
endif()

if(OUTPUT)
  file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [[
#include "trainer/cli/program_version.h"

const char* concord::program_version() { return "@version@"; }
]])
else()
  execute_process(COMMAND ${CMAKE_COMMAND} -E echo "${version}")
endif()
