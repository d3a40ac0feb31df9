// The host's side of platform/abi/host.h: the message of a failure, the log, the settings.
//
// Threads: every function, any thread. The message belongs to the calling thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "platform/abi/host.h"

namespace concord::loader {

// The sentence that explains the failure the calling thread is about to return or has just seen.
void set_error_detail(std::string_view sentence) noexcept;
std::string take_error_detail();  // and clears it

// One line on standard error, written in one call so that lines of several processes do not mix:
//   12:34:56.789 concord[4711] warn cuda: text
// CONCORD_LOG=debug|info|warn|error is the lowest level that is written; warn if it is not set.
void log(concord_log_level level, std::string_view source, std::string_view text) noexcept;

// The setting |name| ("cpu.devices"): an override, else the environment (CONCORD_CPU_DEVICES), else null.
// Owns: the host; valid until the process ends.
const char* config(const char* name) noexcept;

// As config, but nothing if the setting is empty.
std::optional<std::string> setting(const char* name);

// Lets tests and programs answer config() without the environment; nothing takes the override away.
void override_config(const std::string& name, std::optional<std::string> value);

// The struct that a plugin is opened with; its log lines carry |source|. Never freed.
const concord_host* make_host(std::string source);

}  // namespace concord::loader
