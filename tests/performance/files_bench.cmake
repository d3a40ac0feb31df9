# Loading and saving Hugging Face weights, compared with cat and transformers (a Python that has it in CONCORD_PYTHON).
if(TARGET Concord::core)
  find_package(nlohmann_json REQUIRED)
  concord_benchmark(files_bench SOURCES files_bench.cpp LIBRARIES Concord::core nlohmann_json::nlohmann_json PLUGINS cpu)
  if(TARGET files_bench)
    target_compile_definitions(files_bench PRIVATE PLUGINS="${PROJECT_BINARY_DIR}/lib"
      FILES_PEER_SCRIPT="${CMAKE_CURRENT_SOURCE_DIR}/peers/files_peer.py")
  endif()
endif()
