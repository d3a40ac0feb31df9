# The layer check as part of every build: an include against the arrows fails it. And the tests of this folder's own.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_custom_target(concord_layers ALL
  COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_LIST_DIR}/check_layers.py ${PROJECT_SOURCE_DIR}
  COMMENT "Checking that includes follow the layers" VERBATIM)
if(CONCORD_TESTS)
  add_test(NAME toolchains.check_layers
    COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_LIST_DIR}/check_layers_test.py)
  add_test(NAME toolchains.find
    COMMAND ${CMAKE_COMMAND} -DSCRATCH=${PROJECT_BINARY_DIR}/find_test -P ${CMAKE_CURRENT_LIST_DIR}/find_test.cmake)
  set_tests_properties(toolchains.check_layers toolchains.find PROPERTIES LABELS unit TIMEOUT 600)
endif()
