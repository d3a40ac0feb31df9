// Samples of a data set with images and videos (media_set.h).
#pragma once

#include <memory>
#include <string>

#include "trainer/data/sources/sample_source.h"

namespace concord {

// Opens |path|, the folder of a data set or one of its shards; arguments.path is used in messages. A sample whose
// truncation would lose tokens of a medium is left out.
std::unique_ptr<SampleSource> open_media(const std::string& path, const DataArguments& arguments);

}  // namespace concord
