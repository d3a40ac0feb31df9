// Samples for the choice among plugins, which differ only in good_plugin_settings.c: this file is compiled once for
// all.
#include "tests/abi/good_plugin_settings.h"
#include "tests/abi/sample_plugin.hpp"

namespace {

class GoodPlugin : public concord::sample::Plugin {
 public:
  GoodPlugin() : Plugin({sample_name, sample_priority, sample_devices}) {}
};

}  // namespace

CONCORD_PLUGIN(GoodPlugin)
