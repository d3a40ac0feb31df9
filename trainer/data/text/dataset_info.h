// Data sets by name, as LLaMA-Factory has them: dataset_info.json in a folder says for each name which file it is and
// what its columns are called.
//
//   "name": {"file_name": "a.json", "formatting": "alpaca" or "sharegpt", "ranking": false,
//            "columns": {"prompt": "instruction", "query": "input", "response": "output", "history", "system", "tools",
//                        "messages": "conversations", "chosen", "rejected"},
//            "tags": {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt",
//                     "observation_tag": "observation", "function_tag": "function_call", "system_tag": "system"}}
//
// The values above are the defaults of columns; history, system, tools, chosen and rejected have none.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace concord {

struct DatasetInfo {
  std::string file;  // a path as --train_data takes it
  bool is_sharegpt = false;
  bool ranking = false;                        // records are pairs
  std::map<std::string, std::string> columns;  // of the keys above: what the file calls them; none: there is no such
  std::map<std::string, std::string> tags;

  // A record of the file as a line that parse_json_record takes: {"messages"}, {"prompt", "chosen", "rejected"} with
  // lists of messages, or {"text"} for a record of Alpaca's that has only a prompt. |place| begins the message of the
  // ConfigError for a record that has not what it needs. Pure.
  std::string standard_line(std::string_view line, const std::string& place) const;

  // Everything that determines standard_line, to tell one from another.
  std::string text() const;
  bool operator==(const DatasetInfo&) const = default;
};

// Throws ConfigError if |folder| has no dataset_info.json, or it has no such name (with those that it has), or it says
// something that is not supported.
DatasetInfo read_dataset_info(const std::string& folder, const std::string& name);

}  // namespace concord
