// A torch.nn.Module that is trained as a model: concord.train(model=module). concord/_module.py describes it as a
// config.json (core/models/families/module_config.h) and runs its parts; here it becomes a ModelChunk, whose parameters
// are those of the module.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "trainer/pretrain.h"

namespace concord {

// Makes |network|, a concord._module.Network, the model of |arguments|: checks that they can be honoured with a module,
// and names the config.json that it writes. Call with the GIL. Throws ConfigError.
void use_module(const pybind11::object& network, TrainingArguments* arguments);

// Provides the model of use_module(). Its parameters become those of all ranks that should have the same: the values of
// the first of them. |network| must outlive the model. The training thread takes the GIL for every forward.
ModelProvider module_provider(const pybind11::object& network);

}  // namespace concord
