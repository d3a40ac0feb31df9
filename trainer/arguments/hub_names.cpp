#include "trainer/arguments/hub_names.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/base/config_error.h"
#include "core/base/files/hub_cache.h"
#include "trainer/arguments/problems.h"

namespace concord {
namespace {

struct Found {
  std::vector<std::string>* notes;
  Problems problems = {};

  void replace(std::string* given, const char* argument, const char* file = "") {
    problems.collect([&] {
      const std::string local = local_model(*given, argument);
      if (local == *given) return;
      notes->push_back(fmt::format("{} {} is in HF's cache: {}", argument, *given, local));
      *given = local + file;
    });
  }
};

// Adapters are comma-separated, unless a folder has such a name.
void replace_adapters(std::string* given, Found* found) {
  std::error_code ignored;
  if (std::filesystem::exists(*given, ignored)) return;
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= given->size();) {
    const size_t end = std::min(given->find(',', begin), given->size());
    names.push_back(given->substr(begin, end - begin));
    found->replace(&names.back(), "adapter_name_or_path");
    begin = end + 1;
  }
  *given = fmt::format("{}", fmt::join(names, ","));
}

}  // namespace

void use_cached_models(TrainingArguments* arguments, std::vector<std::string>* notes) {
  Found found{.notes = notes};
  found.replace(&arguments->model.path, "model");
  found.replace(&arguments->model.config, "model_config", "/config.json");
  found.replace(&arguments->preference.ref_model, "ref_model");
  found.replace(&arguments->data.tokenizer, "tokenizer");
  replace_adapters(&arguments->finetuning.adapter, &found);
  found.problems.throw_if_any("models that are not here");
}

}  // namespace concord
