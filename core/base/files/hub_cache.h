// Models that are given by their name on the Hugging Face hub (Qwen/Qwen2.5-0.5B): found in the cache that HF's own
// tools fill. Nothing is downloaded here. Threads: any; reads the environment and the file system.
#pragma once

#include <optional>
#include <string>

namespace concord {

// Returns HF's cache: $HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub.
std::string hub_cache();

// Returns the folder of the cached snapshot of the main branch of |name|; nullopt if there is none.
std::optional<std::string> hub_snapshot(const std::string& name);

// Returns |given| if it is empty, an existing path, or not of the form OWNER/NAME; otherwise its snapshot. Throws
// ConfigError, with the command that downloads it, if it is not in the cache. |what| names the argument.
std::string local_model(const std::string& given, const char* what);

}  // namespace concord
