# Data: indices, batches and building, compared with numpy and torch (a Python in CONCORD_PYTHON).
if(TARGET Concord::data)
  find_package(nlohmann_json REQUIRED)
  concord_benchmark(data_bench SOURCES data_bench.cpp LIBRARIES Concord::data nlohmann_json::nlohmann_json)
  if(TARGET data_bench)
    add_dependencies(data_bench concord)
    target_compile_definitions(data_bench PRIVATE DATA_PEER_SCRIPT="${CMAKE_CURRENT_SOURCE_DIR}/peers/data_peer.py"
      PREPROCESS_PEER_SCRIPT="${CMAKE_CURRENT_SOURCE_DIR}/peers/preprocess_peer.py" CONCORD_PROGRAM="$<TARGET_FILE:concord>")
  endif()
endif()
