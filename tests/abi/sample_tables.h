// The sample plugin inside the test program: its tables as returned by the loader, without a file.
#pragma once

#include "platform/loader/host.h"
#include "platform/loader/negotiate.h"
#include "tests/abi/sample_plugin.hpp"

namespace concord::sample {

inline loader::Tables tables_of(const Plugin& plugin) {
  sdk::host_slot() = loader::make_host("sample");
  return loader::negotiate(plugin.root()).tables;
}

// The status of a call through |table|, and its error message.
struct Answer {
  concord_status status;
  std::string detail;
};

template <auto Member, class... Arguments>
Answer call(const loader::Tables& tables, Arguments... arguments) {
  loader::take_error_detail();
  const auto& table = tables.get<loader::TableOf<Member>>();
  const concord_status status = (table.*Member)(table.self, arguments...);
  return {status, loader::take_error_detail()};
}

}  // namespace concord::sample
