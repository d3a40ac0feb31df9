// Samples for the choice among plugins; CMake gives each its name, priority and number of devices.
#include "tests/abi/sample_plugin.hpp"

namespace {

class GoodPlugin : public concord::sample::Plugin {
 public:
  GoodPlugin() : Plugin({SAMPLE_NAME, SAMPLE_PRIORITY, SAMPLE_DEVICES}) {}
};

}  // namespace

CONCORD_PLUGIN(GoodPlugin)
