// A rank of `concord train`: TorchModule::train.
#pragma once

#include "trainer/arguments.h"

namespace concord {

void train_rank(const CommandLine& line);

}  // namespace concord
