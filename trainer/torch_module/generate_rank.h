// A rank of `concord generate`: TorchModule::check_generate and TorchModule::generate.
#pragma once

#include <cstdint>

#include "trainer/generation/generate_arguments.h"

namespace concord {

void check_generate(const GenerateArguments& given, int64_t world);
void generate_rank(const GenerateArguments& given);

}  // namespace concord
