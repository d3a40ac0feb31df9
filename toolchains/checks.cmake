# The layer check as part of every build: an include against the arrows, or a file or folder that is too large, fails
# it. Also the tests of this folder's scripts.
if(NOT Python3_EXECUTABLE)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()
add_custom_target(concord_layers ALL
  COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_LIST_DIR}/check_layers.py ${PROJECT_SOURCE_DIR}
  COMMENT "Checking that includes follow the layers" VERBATIM)
if(CONCORD_TESTS)
  add_dependencies(concord_tests concord_layers)
endif()
foreach(script check_layers check_thread_safety check_words header_samples
    testing/expect_output testing/repeat_tests testing/run_test_program testing/select_tests testing/test_inputs testing/test_summary)
  cmake_path(GET script FILENAME name)
  concord_check(toolchains.${name} LABELS unit
    COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_LIST_DIR}/${script}_test.py)
endforeach()
concord_check(toolchains.find LABELS unit
  COMMAND ${CMAKE_COMMAND} -DSCRATCH=${PROJECT_BINARY_DIR}/find_test -P ${CMAKE_CURRENT_LIST_DIR}/find_test.cmake)
