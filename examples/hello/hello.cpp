// The smallest job: join, add up the ranks, leave.
//
//   hello                                         one process
//   concord launch --nproc 4 -- hello             four of them; torchrun --no-python, srun and mpirun do as well
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <cstdio>
#include <exception>

#include "core/base/config_error.h"
#include "core/mesh/initialize.h"

int main() {
  try {
    concord::ParallelContext& job = concord::initialize({.tensor_model_parallel_size = 1, .seed = 42});
    const at::Tensor sum =
        at::full({1}, static_cast<double>(job.rank()), at::TensorOptions().device(job.torch_device()));
    job.world_group().all_reduce(sum).wait();
    std::printf("rank %lld of %lld on %s: the ranks add up to %g\n", static_cast<long long>(job.rank()),
                static_cast<long long>(job.world()), job.torch_device().str().c_str(), sum.item<double>());
    concord::finalize();
    return 0;
  } catch (const concord::ConfigError& error) {
    std::fprintf(stderr, "hello: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hello: %s\n", error.what());
    return 1;
  }
}
