# The tests of the cuda backend, declared as skipped if PLATFORM leaves it out.
if(CONCORD_MISSING)
  string(APPEND CONCORD_MISSING "; ./run test adds it if it finds nvcc and nccl.h")
endif()
concord_test(cuda_staging_test SOURCES ../staging_test.cpp LIBRARIES Concord::sdk
  LABELS unit no-asan)
concord_test(cuda_unit_test 
  SOURCES ../profiler/peak_flops_test.cpp ../profiler/peak_flops.cpp ../torch/ops/gemm/gemm_cache_test.cpp
    ../torch/ops/gemm/gemm_cache.cpp
  LIBRARIES Concord::sdk
  LABELS unit no-asan)
if(CONCORD_WITH_TORCH AND CONCORD_PROGRAM)
  concord_test(cuda_adamw_test SOURCES ../torch/ops/adamw_narrow_test.cpp LIBRARIES Concord::core LABELS unit no-asan)
endif()
concord_test(cuda_nccl_test SOURCES ../nccl/nccl_test.cpp ../nccl/nccl.cpp
  LIBRARIES Concord::sdk concord_cuda_vendor ${CMAKE_DL_LIBS})
concord_test(cuda_plugin_test SOURCES ../plugin_test.cpp LIBRARIES Concord::sdk ${CMAKE_DL_LIBS} PLUGINS cuda_fake
  LABELS unit leaks threads)
# Not under the thread sanitizer: its ranks are threads of one process, which share the device's barrier token (two
# writers of the same value); ranks that are processes are in cuda_fake.conformance.
concord_test(cuda_comm_test SOURCES ../comm_test.cpp LIBRARIES Concord::sdk ${CMAKE_DL_LIBS} Threads::Threads
  PLUGINS cuda_fake)
concord_test(cuda_communicator_test
  SOURCES ../nccl/communicator_test.cpp ../nccl/communicator.cpp ../device.cpp ../nccl/nccl.cpp ../profiler/peak_flops.cpp
    ../status.cpp
  LIBRARIES Concord::sdk concord_cuda_vendor concord_cuda_fake_runtime ${CMAKE_DL_LIBS} Threads::Threads
  LABELS unit threads)
if(NOT CONCORD_SANITIZE)  # there the plugin is not built
  concord_test(cuda_no_device_test SOURCES ../no_device_test.cpp LIBRARIES Concord::sdk ${CMAKE_DL_LIBS} PLUGINS cuda
    LABELS unit no-asan slow)  # slow, since it builds the kernels
endif()
foreach(test cuda_communicator_test cuda_nccl_test cuda_plugin_test cuda_comm_test cuda_no_device_test)
  if(TARGET ${test})
    target_compile_definitions(${test} PRIVATE ${definitions})
    add_dependencies(${test} concord_cuda_fake_nccl concord_cuda_fake_nccl_21802 concord_cuda_fake_nccl_22809
      concord_cuda_fake_nccl_23100)
    if(TARGET concord_cuda_fake_cupti)
      add_dependencies(${test} concord_cuda_fake_cupti)
    endif()
  endif()
endforeach()
if(TARGET cuda_no_device_test)
  target_compile_definitions(cuda_no_device_test PRIVATE CUDA_PLUGIN_PATH="$<TARGET_FILE:concord_plugin_cuda>")
endif()

# The kit and the device test, on the fake: ranks are processes here, as on a device.
set(on_the_fake "CONCORD_CUDA_NCCL=$<TARGET_FILE:concord_cuda_fake_nccl>" FAKE_CUDA_DEVICES=1)
set(kit --quick --world 3)
if(CONCORD_SANITIZE)  # more of the same takes minutes there
  set(kit --quick --world 2 --filter "^(core|device|memory|stream|event|rng)|Split|SumOfF32|Order|Thread")
endif()
concord_check(cuda_fake.conformance LABELS conformance slow asan threads ENVIRONMENT ${on_the_fake}
  COMMAND concord-conform ${kit} --rank_env NCCL_HOSTID={rank} --platform $<TARGET_FILE:concord_plugin_cuda_fake>
  NEEDS concord-conform concord_plugin_cuda_fake)
if(NOT CONCORD_SANITIZE)
  # The bridge between ranks on cpu and on the fake (docs/mixed-platforms.md).
  concord_check(cuda_fake.bridge LABELS conformance slow ENVIRONMENT ${on_the_fake}
    COMMAND concord-conform --platform bridge:cpu,$<TARGET_FILE:concord_plugin_cuda_fake> --quick --world 3 --filter "^comm"
    NEEDS concord-conform concord_plugin_cuda_fake concord_plugin_cpu)
  if(TARGET concord_plugin_ascend AND TARGET concord_sim_hccl)
    set(platforms cpu $<TARGET_FILE:concord_plugin_ascend> $<TARGET_FILE:concord_plugin_cuda_fake>)
    list(JOIN platforms "," platforms)
    concord_check(cuda_fake.bridge_of_three_platforms LABELS conformance slow
      ENVIRONMENT ${on_the_fake} "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:concord_sim_ascendcl>"
      COMMAND concord-conform --platform bridge:${platforms} --quick --world 3 --filter "^comm.*OnThreeRanks"
      NEEDS concord-conform concord_plugin_cuda_fake concord_plugin_cpu concord_plugin_ascend concord_sim_hccl)
  endif()
  concord_check(cuda_fake.device_test LABELS conformance slow NEEDS concord-cuda-device-test
    ENVIRONMENT ${on_the_fake} CONCORD_CUDA_CUPTI=none  # the fake CUPTI has the records that a test sets
    COMMAND concord-cuda-device-test --plugin $<TARGET_FILE:concord_plugin_cuda_fake>)
endif()
concord_check(cuda_fake.bench LABELS unit slow ENVIRONMENT ${on_the_fake} NEEDS cuda_fake_bench concord_plugin_cuda_fake
  COMMAND $<TARGET_FILE:cuda_fake_bench> --json --ignore_goals --copy_mib 16 --plugin $<TARGET_FILE:concord_plugin_cuda_fake>
  OUTPUT "cuda/batch_p2p/4 B/world 2")
