#include "trainer/data/sources/split.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "trainer/data/numpy_sum.h"

namespace concord {
namespace {

class DocumentRange : public Documents {
 public:
  DocumentRange(std::unique_ptr<Documents> whole, IndexRange range) : whole_(std::move(whole)), range_(range) {}

  int64_t size() const override { return range_.size(); }
  int32_t length(int64_t sequence) const override { return whole_->length(range_.begin + sequence); }
  void read(int64_t sequence, int64_t first, int64_t count, int64_t* out) const override {
    whole_->read(range_.begin + sequence, first, count, out);
  }
  std::string place(int64_t sequence) const override { return whole_->place(range_.begin + sequence); }
  const std::string& name() const override { return whole_->name(); }

 private:
  std::unique_ptr<Documents> whole_;
  IndexRange range_;
};

class SampleRange : public SampleSource {
 public:
  SampleRange(std::unique_ptr<SampleSource> whole, IndexRange range) : whole_(std::move(whole)), range_(range) {}

  int64_t size() const override { return range_.size(); }
  Sample at(int64_t index) const override { return whole_->at(range_.begin + index); }
  int64_t length(int64_t index) const override { return whole_->length(range_.begin + index); }
  DataIdentity identity() const override {
    DataIdentity identity = whole_->identity();
    identity.emplace_back("the part of them", fmt::format("{} to {}", range_.begin, range_.end));
    return identity;
  }
  std::string cut_text() const override { return whole_->cut_text(); }
  const MediaFormat* media_format() const override { return whole_->media_format(); }
  std::vector<int64_t> media_patches(int64_t index) const override {
    return whole_->media_patches(range_.begin + index);
  }
  const std::string& name() const override { return whole_->name(); }

 private:
  std::unique_ptr<SampleSource> whole_;
  IndexRange range_;
};

double weight_of(const std::string& text) {
  double weight = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
  if (error == std::errc() && end == text.data() + text.size() && std::isfinite(weight) && weight >= 0) return weight;
  throw ConfigError(fmt::format("split has {}, but its parts are numbers >= 0, as in 969,30,1", quoted(text)));
}

IndexRange wanted_range(const DataArguments& arguments, int64_t count, const std::string& name, const char* what) {
  const std::optional<Share> share = parse_split(arguments.split)[static_cast<size_t>(arguments.part)];
  const IndexRange range = share ? range_of(*share, count) : IndexRange{};
  if (range.size() > 0) return range;
  throw ConfigError(fmt::format("{}: split {} leaves none of its {} {} for {}; use more data or other shares", name,
                                fmt::join(arguments.split, ","), count, what, to_string(arguments.part)));
}

}  // namespace

const char* to_string(DataPart part) {
  switch (part) {
    case DataPart::train: return "training";
    case DataPart::valid: return "validation";
    case DataPart::test: return "test";
  }
  return "";
}

Split parse_split(const std::vector<std::string>& weights) {
  if (weights.size() > 3) {
    throw ConfigError(
        fmt::format("split has {} numbers, but there are three parts: training, validation and test", weights.size()));
  }
  std::vector<double> numbers;
  for (const std::string& text : weights) numbers.push_back(weight_of(text));
  numbers.resize(3);
  if (numbers[0] <= 0) throw ConfigError("split leaves nothing for training: its first number must be > 0");
  numbers = normalized(std::move(numbers));
  Split split;
  double begin = 0;
  for (size_t i = 0; i < split.size(); ++i) {
    const double end = begin + numbers[i];
    if (end > begin) split[i] = Share{begin, end};
    begin = end;
  }
  return split;
}

IndexRange range_of(const Share& share, int64_t count) {
  const auto place = [&](double at) {  // Python's round: halves round to even
    return static_cast<int64_t>(std::nearbyint(at * static_cast<double>(count)));
  };
  return {place(share.begin), place(share.end)};
}

std::unique_ptr<Documents> part_of(std::unique_ptr<Documents> whole, const DataArguments& arguments) {
  if (arguments.max_samples > 0 && arguments.max_samples < whole->size()) {
    whole = std::make_unique<DocumentRange>(std::move(whole), IndexRange{0, arguments.max_samples});
  }
  if (arguments.split.empty()) return whole;
  const IndexRange range = wanted_range(arguments, whole->size(), whole->name(), "documents");
  return std::make_unique<DocumentRange>(std::move(whole), range);
}

std::unique_ptr<SampleSource> part_of(std::unique_ptr<SampleSource> whole, const DataArguments& arguments) {
  if (arguments.split.empty()) return whole;
  const int64_t rows = arguments.rows_per_sample();
  const IndexRange range =
      wanted_range(arguments, whole->size() / rows, whole->name(), arguments.pairs ? "pairs" : "samples");
  return std::make_unique<SampleRange>(std::move(whole), IndexRange{range.begin * rows, range.end * rows});
}

}  // namespace concord
