// The entry point of libconcordtorch.so.
#include "trainer/torch_module/build_identity.h"
#include "trainer/torch_module/generate_rank.h"
#include "trainer/torch_module/operators_rank.h"
#include "trainer/torch_module/probe_rank.h"
#include "trainer/torch_module/table.h"
#include "trainer/torch_module/train_rank.h"

extern "C" [[gnu::visibility("default")]] const concord::TorchModule* concord_torch_module_open() {
  static const concord::TorchModule module = {
      .struct_size = sizeof(concord::TorchModule),
      .build = concord::build_identity(),
      .train = concord::train_rank,
      .warm_up = concord::warm_up_rank,
      .check_probe = concord::check_probe,
      .probe = concord::probe_rank,
      .check_generate = concord::check_generate,
      .generate = concord::generate_rank,
      .compare_operators = concord::compare_operators,
  };
  return &module;
}
