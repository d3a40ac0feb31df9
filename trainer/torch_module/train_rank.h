// A rank of `concord train`: TorchModule::train and warm_up.
#pragma once

#include "trainer/arguments/arguments.h"

namespace concord {

int train_rank(const CommandLine& line);
void warm_up_rank();

}  // namespace concord
