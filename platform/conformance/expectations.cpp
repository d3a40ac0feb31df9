#include "platform/conformance/expectations.h"

#include <fstream>
#include <sstream>
#include <stdexcept>

namespace concord::conformance {

Expectations::Expectations(const Json& document) : verify_(true) {
  if (!document.is(Json::Kind::kObject)) throw std::runtime_error("expectations must be a JSON object");
  for (const auto& [name, list] : document.members()) {
    if (name != "unsupported" && name != "expected_failure") {
      throw std::runtime_error("expectations consist of the lists unsupported and expected_failure, not '" + name +
                               "'");
    }
  }
  unsupported_ = parse_entries(document, "unsupported");
  expected_failure_ = parse_entries(document, "expected_failure");
}

Expectations Expectations::read(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::ostringstream text;
  text << file.rdbuf();
  try {
    return Expectations(Json::parse(text.str()));
  } catch (const std::exception& error) {
    throw std::runtime_error(path + ": " + error.what());
  }
}

std::vector<Expectations::Entry> Expectations::parse_entries(const Json& document, const std::string& list) {
  std::vector<Entry> entries;
  for (const Json& item : document[list].items()) {
    const std::string& pattern = item["test"].text();
    const std::string& reason = item["reason"].text();
    if (pattern.empty() || reason.empty()) {
      throw std::runtime_error("every entry of " + list + R"( has a "test" and a "reason")");
    }
    try {
      entries.push_back({pattern, std::regex(pattern), reason});
    } catch (const std::regex_error& error) {
      throw std::runtime_error("'" + pattern + "' is not a regular expression: " + error.what());
    }
  }
  return entries;
}

const Expectations::Entry* Expectations::find(const std::vector<Entry>& entries, const std::string& name) {
  for (const Entry& entry : entries) {
    if (std::regex_match(name, entry.test)) return &entry;
  }
  return nullptr;
}

TestResult Expectations::judge(const std::string& name, const TestResult& result) const {
  TestResult judged = result;
  const Entry* unsupported = find(unsupported_, name);
  const Entry* failure = find(expected_failure_, name);
  if (result.status == Status::kPass && (unsupported != nullptr || failure != nullptr)) {
    judged.status = Status::kFail;
    judged.reason = std::string("it passed, but the expectations call it ") +
                    (failure != nullptr ? "an expected failure" : "unsupported") + ": remove the entry '" +
                    (failure != nullptr ? failure : unsupported)->pattern + "'";
  } else if (result.status == Status::kFail && failure != nullptr) {
    judged.status = Status::kSkip;
    judged.reason = "expected failure: " + failure->reason + " (the failure: " + result.reason + ")";
  } else if (result.status == Status::kSkip && result.unsupported && verify_ && unsupported == nullptr) {
    judged.status = Status::kFail;
    judged.reason = "the plugin declares it unsupported (" + result.reason + "), but the expectations do not list it";
  }
  return judged;
}

std::vector<std::string> Expectations::unmatched(const std::vector<std::string>& names) const {
  std::vector<std::string> sentences;
  for (const auto* entries : {&unsupported_, &expected_failure_}) {
    for (const Entry& entry : *entries) {
      bool matched = false;
      for (const std::string& name : names) matched = matched || std::regex_match(name, entry.test);
      if (!matched) sentences.push_back("the expectations entry '" + entry.pattern + "' matches no test");
    }
  }
  return sentences;
}

}  // namespace concord::conformance
