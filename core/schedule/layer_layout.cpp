#include "core/schedule/layer_layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "core/schedule/schedules.h"

namespace concord {
namespace {

void check_range(std::string_view what, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  throw ConfigError(fmt::format("{} is {}; must be from {} to {}", what, value, least, most));
}

void check_deal(const LayerAssignment& deal) {
  check_range("num_layers", deal.num_layers, 1, kMaxLayers);
  check_range("pipeline_model_parallel_size", deal.pp, 1, kMaxRanks);
  check_range("virtual_pipeline_model_parallel_size", deal.vpp, 1, kMaxRanks);
  if (deal.vpp > 1 && deal.pp == 1) {
    throw ConfigError(fmt::format(
        "virtual_pipeline_model_parallel_size {} requires pipeline_model_parallel_size >= 2, but it is 1", deal.vpp));
  }
  const bool ends = deal.num_layers_in_first_pipeline_stage || deal.num_layers_in_last_pipeline_stage;
  if (ends && (deal.account_for_embedding_in_pipeline_split || deal.account_for_loss_in_pipeline_split)) {
    throw ConfigError(
        "num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage cannot be combined with "
        "account_for_embedding_in_pipeline_split or account_for_loss_in_pipeline_split; use only one of the two");
  }
  if (ends && deal.placement == Placement::v) {
    throw ConfigError(
        "num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage are for the two ends of a loop, but "
        "in a v the first rank holds both; use pipeline_model_parallel_layout");
  }
}

// Returns the number of layers per rank if the user has given that of the first or the last rank.
std::vector<int64_t> deal_around_ends(const LayerAssignment& deal) {
  const int64_t first = deal.num_layers_in_first_pipeline_stage.value_or(0);
  const int64_t last = deal.num_layers_in_last_pipeline_stage.value_or(0);
  check_range("num_layers_in_first_pipeline_stage", first, 0, deal.num_layers);
  check_range("num_layers_in_last_pipeline_stage", last, 0, deal.num_layers);
  const int64_t given =
      (deal.num_layers_in_first_pipeline_stage ? 1 : 0) + (deal.num_layers_in_last_pipeline_stage ? 1 : 0);
  const int64_t ranks = deal.pp - given;
  const int64_t rest = deal.num_layers - first - last;
  if (ranks < 0 || rest < 0 || (ranks == 0 && rest != 0) || (ranks > 0 && rest % ranks != 0)) {
    throw ConfigError(
        fmt::format("{} layers minus {} of the first and {} of the last rank leave {} for {} other ranks, which cannot "
                    "be split evenly; change num_layers_in_first_pipeline_stage or num_layers_in_last_pipeline_stage",
                    deal.num_layers, first, last, rest, std::max<int64_t>(ranks, 0)));
  }
  std::vector<int64_t> layers(static_cast<size_t>(deal.pp), ranks == 0 ? 0 : rest / ranks);
  if (deal.num_layers_in_first_pipeline_stage) layers.front() = first;
  if (deal.num_layers_in_last_pipeline_stage) layers.back() = last;
  return layers;
}

// Returns the number of layer slots per rank; with account_for_*, the embedding and the loss take one each.
std::vector<int64_t> deal_to_ranks(const LayerAssignment& deal) {
  if (deal.num_layers_in_first_pipeline_stage || deal.num_layers_in_last_pipeline_stage) return deal_around_ends(deal);
  const int64_t extra =
      (deal.account_for_embedding_in_pipeline_split ? 1 : 0) + (deal.account_for_loss_in_pipeline_split ? 1 : 0);
  const int64_t all = deal.num_layers + extra;
  if (all % deal.pp != 0) {
    throw ConfigError(
        fmt::format("{} layers{} are not divisible by pipeline_model_parallel_size {}; the nearest numbers of layers "
                    "are {} and {}, or use pipeline_model_parallel_layout",
                    deal.num_layers, extra == 0 ? "" : fmt::format(" and {} for embedding and loss", extra), deal.pp,
                    all / deal.pp * deal.pp - extra, (all / deal.pp + 1) * deal.pp - extra));
  }
  return std::vector<int64_t>(static_cast<size_t>(deal.pp), all / deal.pp);
}

// Expands the text of a layout to one character per layer and '|'.
class LayoutText {
 public:
  explicit LayoutText(std::string_view text) : text_(text) {}

  std::string expanded() {
    std::string all;
    while (skip(), at_ < text_.size()) {
      std::string piece = text_[at_] == '(' ? group() : std::string(1, symbol());
      append(&all, piece, repeats());
    }
    return all;
  }

 private:
  static constexpr size_t kMaxSymbols = 2 * static_cast<size_t>(kMaxLayers);

  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError(fmt::format("pipeline_model_parallel_layout {}: {}", quoted(text_), what));
  }

  void skip() {
    while (at_ < text_.size() && (text_[at_] == ',' || text_[at_] == ' ')) ++at_;
  }

  char symbol() {
    const char c = text_[at_++];
    if (std::string_view("EtmL|").find(c) != std::string_view::npos) return c;
    refuse(
        fmt::format("{} at position {} is not one of E (embedding), t (transformer layer), m (multi-token prediction), "
                    "L (loss), '|' between stages, x*n or (..)*n",
                    quoted(std::string_view(&c, 1)), at_));
  }

  std::string group() {
    const size_t open = at_++;
    std::string inside;
    while (skip(), at_ < text_.size() && text_[at_] != ')') {
      const std::string piece(1, symbol());
      append(&inside, piece, repeats());
    }
    if (at_ == text_.size()) refuse(fmt::format("the '(' at position {} is never closed", open + 1));
    ++at_;
    if (at_ == text_.size() || text_[at_] != '*')
      refuse(fmt::format("the group from position {} to {} needs *n after it", open + 1, at_));
    return inside;
  }

  size_t repeats() {
    if (at_ == text_.size() || text_[at_] != '*') return 1;
    size_t count = 0;
    const char* end = text_.data() + text_.size();
    const auto [rest, error] = std::from_chars(text_.data() + at_ + 1, end, count);
    if (error != std::errc() || count > kMaxSymbols)
      refuse(fmt::format("the '*' at position {} needs a number <= {} after it", at_ + 1, kMaxSymbols));
    at_ = static_cast<size_t>(rest - text_.data());
    return count;
  }

  void append(std::string* all, const std::string& piece, size_t count) const {
    if (!piece.empty() && count > (kMaxSymbols - all->size()) / piece.size())
      refuse(fmt::format("it is longer than {} layers and stages", kMaxSymbols));
    for (size_t i = 0; i < count; ++i) *all += piece;
  }

  std::string_view text_;
  size_t at_ = 0;
};

std::string repeated(char symbol, int64_t count) {
  if (count == 0) return {};
  return count == 1 ? std::string(1, symbol) : fmt::format("{}*{}", symbol, count);
}

StageLayers read_stage(std::string_view symbols, int64_t first_layer) {
  StageLayers stage;
  stage.first_layer = first_layer;
  stage.embedding = symbols.find('E') != symbols.npos;
  stage.loss = symbols.find('L') != symbols.npos;
  stage.layers = std::count(symbols.begin(), symbols.end(), 't');
  stage.mtp_layers = std::count(symbols.begin(), symbols.end(), 'm');
  return stage;
}

// Checks Megatron's rules for the order of symbols, over all stages.
std::string broken_order(const std::string& symbols, const std::string& stages, int64_t mtp_layers) {
  const auto count = [&](char symbol) { return std::count(symbols.begin(), symbols.end(), symbol); };
  if (count('E') != 1 || symbols.front() != 'E')
    return fmt::format("E must come first and exactly once; found {} times", count('E'));
  if (count('L') != 1 || symbols.back() != 'L')
    return fmt::format("L must come last and exactly once; found {} times", count('L'));
  if (count('m') != mtp_layers)
    return fmt::format("it has {} multi-token prediction layers (m), but the model has {}", count('m'), mtp_layers);
  if (mtp_layers == 0) return {};
  if (symbols.find('m') < symbols.find_last_of('t')) return "every m must come after the last t";
  const size_t first = stages.find('m');
  const std::string_view between = std::string_view(stages).substr(first, stages.find_last_of('m') - first);
  return between.find('|') == between.npos ? "" : "all m must be in one stage";
}

}  // namespace

std::vector<StageLayers> assign_layers(const LayerAssignment& deal) {
  check_deal(deal);
  const std::vector<int64_t> per_rank = deal_to_ranks(deal);
  const std::vector<int> rank_of_stage =
      place_stages(deal.placement, static_cast<int>(deal.pp), static_cast<int>(deal.vpp));
  std::vector<StageLayers> stages(rank_of_stage.size());
  stages.front().embedding = true;
  stages.back().loss = true;
  int64_t next = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    StageLayers& stage = stages[i];
    const int64_t on_rank = per_rank[static_cast<size_t>(rank_of_stage[i])];
    if (on_rank % deal.vpp != 0) {
      throw ConfigError(
          fmt::format("the {} layers of rank {} are not divisible by virtual_pipeline_model_parallel_size {}", on_rank,
                      rank_of_stage[i], deal.vpp));
    }
    stage.first_layer = next;
    stage.layers = on_rank / deal.vpp - (stage.embedding && deal.account_for_embedding_in_pipeline_split ? 1 : 0) -
                   (stage.loss && deal.account_for_loss_in_pipeline_split ? 1 : 0);
    if (stage.layers < 0) {
      throw ConfigError(
          fmt::format("stage {} of {} has room for {} layer, but embedding and loss count as 2; use fewer stages", i,
                      stages.size(), on_rank / deal.vpp));
    }
    next += stage.layers;
  }
  return stages;
}

std::vector<StageLayers> parse_layer_layout(std::string_view layout, int64_t num_layers, int64_t pp,
                                            int64_t mtp_layers) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(fmt::format("pipeline_model_parallel_layout {}: {}", quoted(layout), what));
  };
  check_range("pipeline_model_parallel_size", pp, 1, kMaxRanks);
  const std::string text = LayoutText(layout).expanded();
  std::string symbols = text;
  symbols.erase(std::remove(symbols.begin(), symbols.end(), '|'), symbols.end());
  if (symbols.empty()) refuse("it has no layers; use e.g. E,t*3|t*4,L");
  const int64_t count = static_cast<int64_t>(text.size() - symbols.size()) + 1;
  if (count % pp != 0) {
    refuse(
        fmt::format("it has {} stages ('|' separates them), which is not a multiple of pipeline_model_parallel_size {}",
                    count, pp));
  }
  if (pp == 1 && count > 1) {
    refuse(fmt::format("its {} stages require pipeline_model_parallel_size >= 2, but it is 1", count));
  }
  if (const std::string broken = broken_order(symbols, text, mtp_layers); !broken.empty()) refuse(broken);
  if (const auto layers = std::count(text.begin(), text.end(), 't'); layers != num_layers) {
    refuse(fmt::format("it has {} transformer layers (t), but the model has {}", layers, num_layers));
  }
  std::vector<StageLayers> stages;
  int64_t next = 0;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('|', begin), text.size());
    stages.push_back(read_stage(std::string_view(text).substr(begin, end - begin), next));
    next += stages.back().layers;
    begin = end + 1;
  }
  return stages;
}

std::string to_string(const std::vector<StageLayers>& stages) {
  std::string text;
  for (size_t i = 0; i < stages.size(); ++i) {
    if (i > 0) text += '|';
    const std::string pieces[] = {stages[i].embedding ? "E" : "", repeated('t', stages[i].layers),
                                  repeated('m', stages[i].mtp_layers), stages[i].loss ? "L" : ""};
    bool first = true;
    for (const std::string& piece : pieces) {
      if (piece.empty()) continue;
      text += (first ? "" : ",") + piece;
      first = false;
    }
  }
  return text;
}

}  // namespace concord
