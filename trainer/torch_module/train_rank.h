// A rank of `concord train`: TorchModule::train.
#pragma once

#include "trainer/arguments/arguments.h"

namespace concord {

int train_rank(const CommandLine& line);

}  // namespace concord
