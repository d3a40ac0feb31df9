// The images and videos of a conversation: columns with one for each placeholder <image> or <video> in the texts, as in
// LLaMA-Factory, or parts of a message's content, as in OpenAI's messages. Threads: pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/data/media/media_settings.h"

namespace concord {

// Returns the media of |messages| in order, and replaces each by the part {"type": "image"} or {"type": "video"}, for
// which chat templates write the model's tokens. |record| may have the columns "images" and "videos"; without them
// <image> and <video> stay text. Throws ConfigError, with |place| at its start, if there are more or fewer media than
// placeholders, and for audio.
std::vector<RecordMedium> take_media(const nlohmann::json& record, const std::string& place, nlohmann::json* messages);

}  // namespace concord
