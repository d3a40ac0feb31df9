# A training step compared with torch DistributedDataParallel with gloo and fused AdamW (a Python with torch in
# CONCORD_PYTHON).
if(TARGET Concord::core)
  find_package(nlohmann_json REQUIRED)
  concord_benchmark(train_step_bench SOURCES train_step_bench.cpp LIBRARIES Concord::core nlohmann_json::nlohmann_json
    PLUGINS cpu)
  if(TARGET train_step_bench)
    target_compile_definitions(train_step_bench PRIVATE PLUGINS="${PROJECT_BINARY_DIR}/lib"
      TRAIN_STEP_PEER="${CMAKE_CURRENT_SOURCE_DIR}/peers/train_step_peer.py")
  endif()
endif()
