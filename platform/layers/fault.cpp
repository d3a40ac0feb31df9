#include "platform/layers/fault.h"

#include <charconv>
#include <string_view>
#include <thread>

#include "platform/loader/error.h"
#include "platform/loader/text.h"

namespace concord::layers {
namespace {

using loader::cat;

constexpr const char* kGrammar =
    "CONCORD_FAULT is a list of rules separated by ';', each TABLE.SLOT@N=ACTION or TABLE.SLOT@*=ACTION, where ACTION "
    "is a status (such as PEER_LOST), delay:NUMBER followed by us, ms or s, or drop; for example "
    "comm.all_reduce@3=PEER_LOST;stream.synchronize@*=delay:10ms;comm.broadcast@2=drop";

[[noreturn]] void refuse(std::string_view rule, const std::string& why) {
  throw Error(CONCORD_STATUS_INVALID_ARGUMENT, cat("'", rule, "' in CONCORD_FAULT: ", why, ". ", kGrammar));
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

const loader::SlotInfo* find_slot(std::string_view rule, std::string_view name) {
  const loader::SlotInfo* found = nullptr;
  std::vector<std::string> of_table;
  std::vector<std::string> tables;
  loader::Tables all{};
  all.for_each([&]<class Table>(Table&) {
    tables.emplace_back(loader::TableTraits<Table>::kName);
    loader::TableTraits<Table>::for_each_slot([&]<auto Member>(loader::Slot<Member>) {
      const loader::SlotInfo& slot = loader::Slot<Member>::kInfo;
      if (name == slot.full_name) found = &slot;
      if (name.starts_with(cat(slot.table, "."))) of_table.emplace_back(slot.name);
    });
  });
  if (found == nullptr && !of_table.empty()) {
    refuse(rule, cat("there is no slot '", name, "'; this table has ", loader::join(of_table, ", ")));
  }
  if (found == nullptr) refuse(rule, cat("there is no slot '", name, "'; the tables are ", loader::join(tables, ", ")));
  return found;
}

int64_t parse_number(std::string_view rule, std::string_view text, const char* what) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1) {
    refuse(rule, cat(what, " is '", text, "'; it must be an integer >= 1"));
  }
  return number;
}

std::chrono::microseconds parse_delay(std::string_view rule, std::string_view text) {
  const auto number = [&](size_t unit) { return parse_number(rule, text.substr(0, text.size() - unit), "the delay"); };
  if (text.ends_with("us")) return std::chrono::microseconds(number(2));
  if (text.ends_with("ms")) return std::chrono::milliseconds(number(2));
  if (text.ends_with("s")) return std::chrono::seconds(number(1));
  refuse(rule, cat("the delay is '", text, "'; it must be a number followed by us, ms or s"));
}

void parse_action(std::string_view text, std::string_view action, FaultRule& rule) {
  if (action == "drop") {
    rule.action = FaultRule::Action::kDrop;
  } else if (action.starts_with("delay:")) {
    rule.action = FaultRule::Action::kDelay;
    rule.delay = parse_delay(text, action.substr(6));
  } else if (const auto status = status_from_name(action); status && *status != CONCORD_STATUS_OK) {
    rule.action = FaultRule::Action::kFail;
    rule.status = *status;
  } else {
    std::vector<std::string> names = status_names();
    names.erase(names.begin());  // OK is not a failure; that is what drop is for
    refuse(text,
           cat("there is no action '", action, "'; it must be one of drop, delay:T, ", loader::join(names, ", ")));
  }
}

FaultRule parse_rule(std::string_view text) {
  const size_t at = text.find('@');
  const size_t equals = text.find('=');
  if (at == std::string_view::npos || equals == std::string_view::npos || at > equals) {
    refuse(text, "it is not of the form TABLE.SLOT@N=ACTION");
  }
  FaultRule rule{nullptr, 0, FaultRule::Action::kFail, CONCORD_STATUS_INTERNAL, {}};
  rule.slot = find_slot(text, trimmed(text.substr(0, at)));
  const std::string_view nth = trimmed(text.substr(at + 1, equals - at - 1));
  if (nth != "*") rule.nth = parse_number(text, nth, "the number of the call");
  parse_action(text, trimmed(text.substr(equals + 1)), rule);
  return rule;
}

}  // namespace

std::string fault_grammar() { return kGrammar; }

std::vector<FaultRule> parse_fault(const std::string& text) {
  std::vector<FaultRule> rules;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(';', begin), text.size());
    const std::string_view rule = trimmed(std::string_view(text).substr(begin, end - begin));
    if (!rule.empty()) rules.push_back(parse_rule(rule));
    begin = end + 1;
  }
  if (rules.empty()) refuse(text, "there is no rule in it");
  return rules;
}

Fault::Fault(const loader::Tables& next, const std::vector<FaultRule>& rules) : next_(next) {
  for (const FaultRule& rule : rules) {
    rules_.push_back(std::make_unique<Counted>());
    rules_.back()->rule = rule;
  }
}

Fault::Verdict Fault::judge(const loader::SlotInfo& slot) {
  Verdict verdict{true, CONCORD_STATUS_OK};
  for (const auto& counted : rules_) {
    const FaultRule& rule = counted->rule;
    if (rule.slot != &slot) continue;
    const int64_t call = counted->calls.fetch_add(1, std::memory_order_relaxed) + 1;
    if (rule.nth != 0 && rule.nth != call) continue;
    if (rule.action == FaultRule::Action::kDelay) {
      std::this_thread::sleep_for(rule.delay);
    } else if (verdict.make_call) {  // the first that speaks decides; the others still count
      const bool fails = rule.action == FaultRule::Action::kFail;
      verdict = {false, fails ? rule.status : CONCORD_STATUS_OK};
      if (fails) {
        loader::set_error_detail(cat("injected by the fault layer into call ", call, " of ", slot.full_name));
      }
    }
  }
  return verdict;
}

}  // namespace concord::layers
