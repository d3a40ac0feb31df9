# Pipeline schedules compared with torch.distributed.pipelining (a Python in CONCORD_PYTHON).
if(TARGET Concord::schedule)
  find_package(nlohmann_json REQUIRED)
  concord_benchmark(schedule_bench SOURCES schedule_bench.cpp LIBRARIES Concord::schedule nlohmann_json::nlohmann_json)
  if(TARGET schedule_bench)
    target_compile_definitions(schedule_bench PRIVATE
      SCHEDULE_PEER_SCRIPT="${CMAKE_CURRENT_SOURCE_DIR}/peers/schedule_peer.py")
  endif()
endif()
