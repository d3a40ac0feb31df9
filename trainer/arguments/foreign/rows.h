// How the tables of foreign settings are written: rows of one program, several of the same meaning at a time.
#pragma once

#include <initializer_list>

#include "trainer/arguments/foreign/foreign.h"

namespace concord {

// Reasons that several programs' settings share.
inline constexpr std::string_view kFast = "it affects speed only, not results; the platform decides";
inline constexpr std::string_view kMetrics =
    "metrics are always written to output_dir: metrics.jsonl, TensorBoard events in runs, report.html";

inline constexpr std::string_view kNotEnabled = "the setting that enables it is not supported";
inline constexpr std::string_view kRollouts = "there is no reinforcement learning with rollouts";

class ForeignRows {
 public:
  explicit ForeignRows(ForeignProgram program) : program_(program) {}

  // {name, argument} each
  ForeignRows& same(std::initializer_list<std::pair<std::string_view, std::string_view>> names) {
    for (const auto& [name, argument] : names) rows_.push_back({name, program_, SameArgument{argument}});
    return *this;
  }
  ForeignRows& convert(std::string_view name, const Converted& converted) {
    rows_.push_back({name, program_, converted});
    return *this;
  }
  ForeignRows& model(std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) rows_.push_back({name, program_, DescribesModel{}});
    return *this;
  }
  ForeignRows& no_effect(std::string_view why, std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) rows_.push_back({name, program_, WithoutEffect{why}});
    return *this;
  }
  ForeignRows& refuse(std::string_view name, std::initializer_list<std::string_view> neutral,
                      std::string_view instead) {
    rows_.push_back({name, program_, NotSupported{neutral, instead}});
    return *this;
  }

  const std::vector<ForeignSetting>& rows() const { return rows_; }

 private:
  ForeignProgram program_;
  std::vector<ForeignSetting> rows_;
};

std::vector<ForeignSetting> huggingface_settings();    // with TRL's
std::vector<ForeignSetting> llama_factory_settings();  // with ROLL's
std::vector<ForeignSetting> megatron_settings();
void add_megatron_without_counterpart(ForeignRows& rows);  // those without effect, and refused ones
std::vector<ForeignSetting> flagscale_settings();
std::vector<ForeignSetting> torchtitan_settings();

}  // namespace concord
