// docs/foreign-settings.md, from the table.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "trainer/arguments/foreign/foreign.h"
#include "trainer/arguments/values.h"

namespace concord {
namespace {

constexpr std::string_view kIntroduction = R"(# Settings of other programs

`concord train` reads the files and command lines of the programs below. A setting is used under its own name, or it is
converted, describes the model, has no effect, or is refused with what to use instead; a run lists those that have no
effect, and stops for those that are refused. Names that Concord has too are in `concord train --help` and not here.
`docs/training.md` says how files are given. `*` is any text.

A setting without effect chooses an implementation, with the same results. A setting that describes the model has to
agree with its `config.json`; a run without a model makes a `config.json` of Megatron's, which `--print_config` shows as
`model_config` and every checkpoint has. Null means that a setting is not given.

This page is made from the table of settings. `CONCORD_WRITE_DOCS=1 build/tests/arguments_test
--gtest_filter=ForeignArguments.*` writes it again.
)";

// Text in a cell of a table.
std::string cell(std::string_view text) {
  std::string escaped;
  for (const char each : text) escaped += each == '|' ? std::string("\\|") : std::string(1, each);
  return escaped;
}

template <class Meaning>
std::vector<const ForeignSetting*> with(ForeignProgram program) {
  std::vector<const ForeignSetting*> settings;
  for (const ForeignSetting& setting : foreign_settings()) {
    if (setting.program == program && std::holds_alternative<Meaning>(setting.meaning)) settings.push_back(&setting);
  }
  return settings;
}

template <class Meaning>
const Meaning& meaning_of(const ForeignSetting* setting) {
  return std::get<Meaning>(setting->meaning);
}

void write_same(ForeignProgram program, std::string* page) {
  const auto settings = with<SameArgument>(program);
  if (settings.empty()) return;
  *page += "\n| setting | is |\n|---|---|\n";
  for (const ForeignSetting* setting : settings) {
    *page += fmt::format("| `{}` | `{}` |\n", setting->name, meaning_of<SameArgument>(setting).argument);
  }
}

void write_converted(ForeignProgram program, std::string* page) {
  const auto settings = with<Converted>(program);
  if (settings.empty()) return;
  *page += "\n| setting | becomes |\n|---|---|\n";
  for (const ForeignSetting* setting : settings) {
    *page += fmt::format("| `{}` | {} |\n", setting->name, cell(meaning_of<Converted>(setting).as));
  }
}

std::string names_of(const std::vector<const ForeignSetting*>& settings) {
  std::vector<std::string> names;
  for (const ForeignSetting* setting : settings) names.push_back(fmt::format("`{}`", setting->name));
  return fmt::format("{}", fmt::join(names, ", "));
}

void write_ignored(ForeignProgram program, std::string* page) {
  const auto settings = with<WithoutEffect>(program);
  if (settings.empty()) return;
  *page += "\n| without effect | because |\n|---|---|\n";
  std::vector<std::string_view> reasons;
  for (const ForeignSetting* setting : settings) {
    const std::string_view why = meaning_of<WithoutEffect>(setting).why;
    if (std::ranges::find(reasons, why) == reasons.end()) reasons.push_back(why);
  }
  for (const std::string_view why : reasons) {
    std::vector<const ForeignSetting*> names;
    std::ranges::copy_if(settings, std::back_inserter(names), [why](const ForeignSetting* setting) {
      return meaning_of<WithoutEffect>(setting).why == why;
    });
    *page += fmt::format("| {} | {} |\n", names_of(names), cell(why));
  }
}

void write_refused(ForeignProgram program, std::string* page) {
  const auto settings = with<NotSupported>(program);
  if (settings.empty()) return;
  *page += "\n| refused | unless | instead |\n|---|---|---|\n";
  for (const ForeignSetting* setting : settings) {
    const NotSupported& refused = meaning_of<NotSupported>(setting);
    std::vector<std::string> neutral;
    for (const std::string_view value : refused.neutral)
      neutral.push_back(value.empty() ? "empty" : std::string(value));
    *page += fmt::format("| `{}` | {} | {} |\n", setting->name, fmt::join(neutral, ", "), cell(refused.instead));
  }
}

void write_values(std::string* page) {
  *page += "\n## Values\n\n| argument | value | is |\n|---|---|---|\n";
  for (const ValueAlias& alias : value_aliases()) {
    *page += fmt::format("| `{}` | `{}` | `{}` |\n", alias.argument, alias.value, alias.meaning);
  }
}

}  // namespace

std::string foreign_settings_page() {
  std::string page(kIntroduction);
  for (size_t i = 0; i < std::size(kEnumNames<ForeignProgram>); ++i) {
    const auto program = static_cast<ForeignProgram>(i);
    page += fmt::format("\n## {}\n", name_of(program));
    write_same(program, &page);
    write_converted(program, &page);
    const auto described = with<DescribesModel>(program);
    if (!described.empty()) page += fmt::format("\nThe model is described by {}.\n", names_of(described));
    write_ignored(program, &page);
    write_refused(program, &page);
  }
  write_values(&page);
  return page;
}

}  // namespace concord
