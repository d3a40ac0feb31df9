// Any bytes as the list of `concord plan --parameters`: either rejected with a ConfigError, or a plan with a valid
// memory size.
#include <cstdint>

#include "core/base/config_error.h"
#include "tests/fuzz/check.h"
#include "trainer/cli/plans/plan_buckets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace concord;
  constexpr const char* kFile = "fuzz.json";
  std::vector<PlannedParameter> parameters;
  try {
    parameters = parse_parameters({reinterpret_cast<const char*>(data), size}, kFile, "bf16");
  } catch (const ConfigError& error) {
    fuzz::check_error(error.what(), kFile);
    return 0;
  }
  for (const int64_t ranks : {int64_t{1}, int64_t{3}, int64_t{1} << 40}) {
    try {
      const BucketOptions options{.dp = ranks, .edp = ranks, .bucket_elements = ranks, .distributed_optimizer = true};
      const BucketPlan plan = plan_buckets(parameters, options);
      const BucketMemory memory = memory_of(plan);
      fuzz::check(memory.parameters >= 0 && memory.gradients >= 0 && memory.optimizer >= 0 && memory.total() >= 0,
                  "memory is not negative");
      fuzz::check(!to_text(plan, parameters).empty(), "it can be printed");
    } catch (const ConfigError& error) {
      fuzz::check_error(error.what(), "");
    }
  }
  return 0;
}
