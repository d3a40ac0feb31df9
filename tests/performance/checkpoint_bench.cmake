# Saving and loading the whole state of a run, compared with torch.distributed.checkpoint and plain files.
if(TARGET Concord::core AND TARGET concord)
  find_package(nlohmann_json REQUIRED)
  concord_benchmark(checkpoint_bench SOURCES checkpoint_bench.cpp LIBRARIES Concord::core nlohmann_json::nlohmann_json
    PLUGINS cpu)
  if(TARGET checkpoint_bench)
    add_dependencies(checkpoint_bench concord)
    target_compile_definitions(checkpoint_bench PRIVATE PLUGINS="${PROJECT_BINARY_DIR}/lib"
      PROGRAM="$<TARGET_FILE:concord>" PEER_SCRIPT="${CMAKE_CURRENT_SOURCE_DIR}/peers/checkpoint_peer.py")
  endif()
endif()
