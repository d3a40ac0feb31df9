// The values of a config.json, each with its check: used by the files of the families. Errors are ConfigError and
// name the file, the key, the value and what is allowed. A key whose value is null counts as missing, as in
// transformers.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace concord {

struct IntegerRange {
  int64_t least;
  int64_t most;
};

// Refers to |object|, which has to outlive it. |path| precedes keys in errors: "rope_scaling.".
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string file, std::string path = "");

  bool has(const std::string& key) const;    // and is not null
  bool names(const std::string& key) const;  // null or not
  // Without a fallback the key has to be there.
  int64_t integer(const std::string& key, IntegerRange range, std::optional<int64_t> fallback = {}) const;
  double positive(const std::string& key, std::optional<double> fallback = {}) const;      // finite and above 0
  double not_negative(const std::string& key, std::optional<double> fallback = {}) const;  // finite and at least 0
  bool flag(const std::string& key, bool fallback) const;
  std::string text(const std::string& key, std::optional<std::string> fallback = {}) const;
  std::vector<std::string> texts(const std::string& key) const;                     // empty if the key is missing
  std::vector<int64_t> integers(const std::string& key, IntegerRange range) const;  // empty if the key is missing
  ConfigReader object(const std::string& key) const;
  size_t keys() const;  // how many there are
  std::vector<std::string> key_names() const;
  // Adds the name of every key that is asked for, but not of those in inner objects, to |names|, which has to outlive
  // this object.
  void record(std::set<std::string>* names) { asked_ = names; }

  // Throws ConfigError: "FILE: KEY is VALUE; it WHAT".
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const;
  // "FILE: WHY".
  [[noreturn]] void refuse(const std::string& why) const;
  const std::string& file() const { return file_; }

 private:
  const nlohmann::json& value(const std::string& key, const std::string& wanted) const;
  double number(const std::string& key, const std::string& wanted) const;

  const nlohmann::json& object_;
  std::string file_;
  std::string path_;
  std::set<std::string>* asked_ = nullptr;
};

}  // namespace concord
