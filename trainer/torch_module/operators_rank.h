// The process of `concord operators`: TorchModule::compare_operators.
#pragma once

#include "trainer/torch_module/operators_arguments.h"

namespace concord {

// Prints a line per comparison and writes all of them to |given|.out. Returns the exit code: 1 if one is wrong.
int compare_operators(const OperatorsArguments& given);

}  // namespace concord
