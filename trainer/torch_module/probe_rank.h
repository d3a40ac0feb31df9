// A rank of `concord probe`: TorchModule::check_probe and TorchModule::probe.
#pragma once

#include <cstdint>

#include "trainer/probe_arguments.h"

namespace concord {

void check_probe(const ProbeArguments& given, int64_t world);
void probe_rank(const ProbeArguments& given);

}  // namespace concord
