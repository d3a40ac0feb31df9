#include "core/base/files/hub_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "tests/error_of.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using tests::error_of;

// A cache as huggingface_hub leaves it, and the environment that leads there.
class HubCache : public ::testing::Test {
 protected:
  HubCache() : folder_(fs::temp_directory_path() / ("concord-hub-" + std::to_string(std::random_device{}()))) {
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
      const char* value = std::getenv(name);
      if (value != nullptr) before_[name] = value;
      unsetenv(name);
    }
    setenv("HOME", folder_.c_str(), 1);
  }
  ~HubCache() override {
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) unsetenv(name);
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
    fs::remove_all(folder_);
  }

  // Returns the snapshot of a model in |cache|.
  static std::string add(const fs::path& cache, const std::string& model, const std::string& commit) {
    const fs::path snapshot = cache / model / "snapshots" / commit;
    fs::create_directories(snapshot);
    fs::create_directories(cache / model / "refs");
    std::ofstream(cache / model / "refs/main") << commit;
    return snapshot.string();
  }

  fs::path folder_;
  std::map<std::string, std::string> before_;
};

TEST_F(HubCache, IsThatOfTheMostSpecificVariable) {
  for (const auto& [variable, cache] : {std::pair{"HOME", ".cache/huggingface/hub"},
                                        {"XDG_CACHE_HOME", "huggingface/hub"},
                                        {"HF_HOME", "hub"},
                                        {"HF_HUB_CACHE", ""}}) {
    const fs::path base = folder_ / variable;
    setenv(variable, base.c_str(), 1);
    const std::string snapshot = add(base / cache, "models--Owner--a.Model-1_b", "0123abc");
    EXPECT_EQ(hub_snapshot("Owner/a.Model-1_b"), snapshot) << variable;
    EXPECT_EQ(local_model("Owner/a.Model-1_b", "model"), snapshot) << variable;
  }
}

TEST_F(HubCache, APathThatExistsOrNoNameStaysAsItIs) {
  add(folder_ / ".cache/huggingface/hub", "models--tests--golden", "0123abc");
  const fs::path before = fs::current_path();
  fs::create_directories(folder_ / "tests/golden");
  fs::current_path(folder_);
  EXPECT_EQ(local_model("tests/golden", "model"), "tests/golden") << "a folder wins";
  fs::current_path(before);
  for (const char* given :
       {"", "byte", "/tests/golden", "./golden", "a/b/c", "../golden", "tests/config.json", "a/b c"}) {
    EXPECT_EQ(local_model(given, "model"), given);
  }
}

TEST_F(HubCache, WhatIsMissingIsSaidWithTheCommand) {
  const auto error = [] { return error_of([] { local_model("Owner/Model", "ref_model"); }); };
  EXPECT_THAT(error(), HasSubstr("ref_model 'Owner/Model' is neither a folder here nor a model in HF's cache, " +
                                 hub_cache() + "; check the path"));
  EXPECT_THAT(error(), HasSubstr("download it first: hf download Owner/Model"));
  const std::string snapshot = add(hub_cache(), "models--Owner--Model", "0123abc");
  EXPECT_EQ(local_model("Owner/Model", "ref_model"), snapshot);
  fs::remove_all(snapshot);
  EXPECT_THAT(error(), HasSubstr("hf download")) << "an interrupted download";
  std::ofstream(fs::path(hub_cache()) / "models--Owner--Model/refs/main") << "../refs";
  EXPECT_THAT(error(), HasSubstr("hf download")) << "not a commit";
}

}  // namespace
}  // namespace concord
