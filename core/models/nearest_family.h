// The family that is most similar to a model of an unknown model_type, for the error that rejects it. Needs no
// libtorch. Reads nothing except headers of the model's files; threads: any.
#pragma once

#include <string>

#include "core/models/config_reader.h"

namespace concord {

// Returns "the nearest is olmo2, which ...": the family of the most similar name, or if there is none the one that
// knows most keys of |read|'s file, and what differs: keys that the family does not know, or why it rejects the file,
// and, if the file is in a folder with weights, tensors that it has not or that the folder has not.
std::string nearest_family(const ConfigReader& read);

}  // namespace concord
