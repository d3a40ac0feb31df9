# Groups and initialisation compared with Megatron's RankGenerator and torchrun with gloo (a Python in CONCORD_PYTHON).
if(TARGET Concord::core AND TARGET hello)
  find_package(nlohmann_json REQUIRED)
  concord_benchmark(init_bench SOURCES init_bench.cpp LIBRARIES Concord::core Concord::launch nlohmann_json::nlohmann_json
    PLUGINS cpu)
  if(TARGET init_bench)
    add_dependencies(init_bench hello)
    target_compile_definitions(init_bench PRIVATE HELLO="$<TARGET_FILE:hello>" PLUGINS="${PROJECT_BINARY_DIR}/lib"
      INIT_PEER_SCRIPT="${CMAKE_CURRENT_SOURCE_DIR}/peers/init_peer.py")
  endif()
endif()
