# Forward and backward of a whole model compared with transformers (a Python that has it in CONCORD_PYTHON).
if(TARGET Concord::core)
  find_package(nlohmann_json REQUIRED)
  concord_benchmark(model_bench SOURCES model_bench.cpp LIBRARIES Concord::core nlohmann_json::nlohmann_json PLUGINS cpu)
  if(TARGET model_bench)
    target_compile_definitions(model_bench PRIVATE PLUGINS="${PROJECT_BINARY_DIR}/lib"
      MODEL_PEER="${CMAKE_CURRENT_SOURCE_DIR}/peers/model_peer.py")
  endif()
endif()
