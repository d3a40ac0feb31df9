# concord_plugin(NAME SOURCES ... LIBRARIES ...): the target concord_plugin_NAME, a libconcord_NAME.so that exports
# concord_plugin_open alone. The same function here and, through find_package(Concord), in a plugin's own project.
function(concord_plugin name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(concord_plugin_${name} MODULE ${ARG_SOURCES})
  set_target_properties(concord_plugin_${name} PROPERTIES PREFIX "lib" OUTPUT_NAME concord_${name}
    POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(concord_plugin_${name} PRIVATE
    Concord::sdk ${ARG_LIBRARIES} $<TARGET_NAME_IF_EXISTS:concord_build_flags>)
  if(COMMAND concord_precompile_plain)  # in this project only
    concord_precompile_plain(concord_plugin_${name} ${ARG_LIBRARIES})
  endif()
  # No other symbol may be exported, not even from a static library inside: several plugins share a process.
  set(map "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/plugin.map")
  target_link_options(concord_plugin_${name} PRIVATE "-Wl,--version-script,${map}")
  set_property(TARGET concord_plugin_${name} APPEND PROPERTY LINK_DEPENDS "${map}")
endfunction()
