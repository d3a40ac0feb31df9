#include "backends/ascend/sim/runtime/faults.h"

#include <cstdlib>
#include <sstream>
#include <thread>

#include "backends/ascend/sim/runtime/settings.h"

namespace concord::ascend::sim {
namespace {

[[noreturn]] void refuse(const std::string& rule) {
  invalid(
      text("the fault '%s' is invalid; a rule is name@n=code, name@n=async:code or name@n=delay:10ms, where n "
           "is the call's number from 1 or *, and rules are separated by ';'",
           rule.c_str()));
}

int64_t parse_positive(const std::string& digits, const std::string& rule) {
  char* end = nullptr;
  const long long value = std::strtoll(digits.c_str(), &end, 10);
  if (digits.empty() || *end != '\0' || value <= 0) refuse(rule);
  return value;
}

FaultRule parse_rule(const std::string& text) {
  const size_t at = text.find('@');
  const size_t equals = text.find('=', at == std::string::npos ? 0 : at);
  if (at == std::string::npos || equals == std::string::npos || at == 0) refuse(text);
  FaultRule rule;
  rule.name = text.substr(0, at);
  const std::string nth = text.substr(at + 1, equals - at - 1);
  rule.nth = nth == "*" ? 0 : parse_positive(nth, text);
  const std::string action = text.substr(equals + 1);
  if (action.rfind("delay:", 0) == 0) {
    rule.kind = FaultRule::Kind::kDelay;
    if (!parse_duration(action.substr(6), &rule.delay)) refuse(text);
  } else if (action.rfind("async:", 0) == 0) {
    rule.kind = FaultRule::Kind::kFailOnStream;
    rule.code = static_cast<abi::aclError>(parse_positive(action.substr(6), text));
  } else {
    rule.code = static_cast<abi::aclError>(parse_positive(action, text));
  }
  return rule;
}

}  // namespace

std::vector<FaultRule> parse_faults(const std::string& text) {
  std::vector<FaultRule> rules;
  std::stringstream stream(text);
  for (std::string rule; std::getline(stream, rule, ';');) {
    if (!rule.empty()) rules.push_back(parse_rule(rule));
  }
  return rules;
}

Faults::Faults() {
  try {
    set(settings().faults);
  } catch (const Error& error) {
    std::fprintf(stderr, "[sim-npu] CONCORD_SIM_NPU_FAULT: %s\n", error.what());
    std::exit(2);
  }
}

Faults& Faults::instance() {
  static Faults& faults = *new Faults;  // never destroyed: used until the process ends
  return faults;
}

void Faults::set(const std::string& text) {
  std::vector<FaultRule> rules = parse_faults(text);
  const std::lock_guard lock(mutex_);
  rules_ = std::move(rules);
  calls_.clear();
  active_.store(!rules_.empty());
}

WorkFault Faults::count(const char* name) {
  WorkFault fault;
  const std::lock_guard lock(mutex_);
  const int64_t number = ++calls_[name];
  for (const FaultRule& rule : rules_) {
    if ((rule.name != "*" && rule.name != name) || (rule.nth != 0 && rule.nth != number)) continue;
    switch (rule.kind) {
      case FaultRule::Kind::kFail:
        fail(rule.code, text("injected failure of call %lld", static_cast<long long>(number)));
      case FaultRule::Kind::kFailOnStream: fault.code = rule.code; break;
      case FaultRule::Kind::kDelay: fault.delay += rule.delay; break;
    }
  }
  return fault;
}

int64_t Faults::calls_of(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(name);
  return found == calls_.end() ? 0 : found->second;
}

void Faults::sleep(std::chrono::microseconds delay) {
  if (delay.count() > 0) std::this_thread::sleep_for(delay);
}

}  // namespace concord::ascend::sim
