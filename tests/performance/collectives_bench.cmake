# The shm engine compared with torch.distributed with gloo (a Python with torch in CONCORD_PYTHON).
find_package(nlohmann_json REQUIRED)
concord_benchmark(collectives_bench SOURCES collectives_bench.cpp LIBRARIES Concord::mesh Concord::shm nlohmann_json::nlohmann_json)
set_source_files_properties(collectives_bench.cpp PROPERTIES COMPILE_DEFINITIONS
  "COLLECTIVES_GLOO_SCRIPT=\"${CMAKE_CURRENT_SOURCE_DIR}/peers/collectives_gloo.py\"")
