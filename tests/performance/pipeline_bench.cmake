# Pipelines of stages that sleep, compared with the simulator.
if(TARGET Concord::core)
  find_package(nlohmann_json REQUIRED)
  concord_benchmark(pipeline_bench SOURCES pipeline_bench.cpp LIBRARIES Concord::core nlohmann_json::nlohmann_json
    PLUGINS cpu)
  if(TARGET pipeline_bench)
    target_compile_definitions(pipeline_bench PRIVATE PLUGINS="${PROJECT_BINARY_DIR}/lib")
  endif()
endif()
