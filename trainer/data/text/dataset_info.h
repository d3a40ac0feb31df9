// Named data sets as in LLaMA-Factory: dataset_info.json in a folder gives for each name its file and column names.
//
//   "name": {"file_name": "a.json", "formatting": "alpaca" or "sharegpt", "ranking": false,
//            "columns": {"prompt": "instruction", "query": "input", "response": "output", "history", "system", "tools",
//                        "images", "videos", "audios", "messages": "conversations", "chosen", "rejected"},
//            "tags": {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt",
//                     "observation_tag": "observation", "function_tag": "function_call", "system_tag": "system"}}
//
// The values above are the default column names; the others have none.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace concord {

struct DatasetInfo {
  std::string file;  // a path as for --train_data
  bool is_sharegpt = false;
  bool ranking = false;                        // records are preference pairs
  std::map<std::string, std::string> columns;  // file's column for each of the keys above; missing: no such column
  std::map<std::string, std::string> tags;

  // Converts a record of the file to a line for parse_json_record: {"messages"}, {"prompt", "chosen", "rejected"} with
  // lists of messages, or {"text"} for an Alpaca record with only a prompt. Throws ConfigError, with |place| at its
  // start, for a record that lacks a required column. Pure.
  std::string standard_line(std::string_view line, const std::string& place) const;

  // Returns everything that determines standard_line, for comparison.
  std::string text() const;
  bool operator==(const DatasetInfo&) const = default;
};

// Throws ConfigError if |folder| has no dataset_info.json, if it does not contain |name| (with the known names), or if
// it contains something that is not supported.
DatasetInfo read_dataset_info(const std::string& folder, const std::string& name);

}  // namespace concord
