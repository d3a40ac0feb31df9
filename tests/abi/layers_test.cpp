// Layers switched on by their settings, over a plugin from a file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "platform/cpp/concord.hpp"
#include "platform/layers/layers.h"
#include "tests/abi/test_plugins.h"

namespace {

using namespace concord;
using test::plugin_path;
using testing::AllOf;
using testing::HasSubstr;

class Layers : public testing::Test {
 protected:
  ~Layers() override {
    for (const char* name : {"layers", "fault", "trace"}) loader::override_config(name, std::nullopt);
  }
  static void set(const std::string& name, const std::string& value) { loader::override_config(name, value); }
  // Returns the sample's own tables, wrapped according to the settings. (A plugin is opened once per process, so not
  // through its file.)
  static loader::Tables wrapped() { return layers::wrap(loader::open_plugin(plugin_path("sample")).unwrapped); }
  static std::string refusal() {
    return test::error_of([] { layers::check_settings(); });
  }
};

TEST_F(Layers, NothingIsWrappedWhereNoneIsNamed) {
  const std::string path = plugin_path("sample");  // a variable: GCC 13 warns about a reference to a temporary
  const loader::Plugin& plugin = loader::open_plugin(path);
  EXPECT_EQ(std::memcmp(&plugin.tables, &plugin.unwrapped, sizeof plugin.tables), 0);
  const loader::Tables tables = wrapped();
  EXPECT_EQ(std::memcmp(&tables, &plugin.unwrapped, sizeof tables), 0);
}

TEST_F(Layers, UnknownNameIsAnErrorWithTheKnownOnes) {
  set("layers", "validate,tarce");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("there is no layer 'tarce'"), HasSubstr("validate, trace, fault")));
  set("layers", "validate,");
  EXPECT_THAT(refusal(), HasSubstr("there is no layer ''"));
  set("layers", "validate,validate");
  EXPECT_THAT(refusal(), HasSubstr("it names 'validate' twice"));
}

TEST_F(Layers, WrongSettingOfALayerIsFoundBeforeAnyPluginIsTouched) {
  set("layers", "fault");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("CONCORD_FAULT is not set"), HasSubstr("TABLE.SLOT@N=ACTION")));
  set("fault", "nonsense");
  EXPECT_THAT(refusal(), HasSubstr("'nonsense' in CONCORD_FAULT"));
  EXPECT_THAT(test::error_of([] { open_platform(plugin_path("sample")); }), HasSubstr("'nonsense' in CONCORD_FAULT"));
  set("layers", "");
  EXPECT_EQ(refusal(), "");
}

TEST_F(Layers, FirstNameIsTheOutermost) {
  set("fault", "device.set_current@*=TIMEOUT");
  set("layers", "validate,fault");
  loader::Tables tables = wrapped();
  EXPECT_EQ(tables.device.set_current(tables.device.self, 99), CONCORD_STATUS_INVALID_ARGUMENT)
      << "validate comes first";
  EXPECT_EQ(tables.device.set_current(tables.device.self, 0), CONCORD_STATUS_TIMEOUT);
  set("layers", "fault,validate");
  tables = wrapped();
  EXPECT_EQ(tables.device.set_current(tables.device.self, 99), CONCORD_STATUS_TIMEOUT) << "fault comes first";
}

TEST_F(Layers, PluginOpenedWithLayersIsWrapped) {
  set("layers", "validate");
  const Platform platform = open_platform(plugin_path("layered"));
  EXPECT_THAT(test::error_of([&] { Stream(Device(platform, 9)); }), HasSubstr("device 9 does not exist; there are 1"));
  const Stream stream(Device(platform, 0));
  concord_stream gone = nullptr;
  {
    const Stream other(Device(platform, 0));
    gone = other.native();
  }
  const concord_stream_table& table = platform.tables().stream;
  EXPECT_EQ(table.synchronize(table.self, gone), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_THAT(loader::take_error_detail(), HasSubstr("was destroyed"));
}

}  // namespace
