#include "trainer/data/sources/blend.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "trainer/data/numpy_sum.h"
#include "trainer/data/sampler.h"

namespace concord {
namespace {

constexpr double kSurplus = 0.005;     // Megatron's mid_level_dataset_surplus
constexpr size_t kMaxSources = 32766;  // same limit as Megatron
constexpr int64_t kMaxSamples = std::numeric_limits<uint32_t>::max();

std::optional<double> number_in(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Returns the source among |open| that is furthest below its fraction before sample |place|; ties: the first.
template <class Sources>
size_t neediest(const Sources& open, const std::vector<double>& weights, const std::vector<int64_t>& drawn,
                int64_t place) {
  const double so_far = std::max(static_cast<double>(place), 1.0);
  size_t chosen = open.front();
  double largest = std::numeric_limits<double>::lowest();
  for (const size_t source : open) {
    // Must not be a fused multiply-add, see CMakeLists.txt.
    const double missing = weights[source] * so_far - static_cast<double>(drawn[source]);
    if (missing > largest) {
      largest = missing;
      chosen = source;
    }
  }
  return chosen;
}

std::vector<size_t> all_of(size_t count) {
  std::vector<size_t> sources(count);
  std::iota(sources.begin(), sources.end(), size_t{0});
  return sources;
}

void check_size(int64_t size) {
  if (size <= kMaxSamples) return;
  throw ConfigError(fmt::format("a blend of {} samples exceeds the limit of 2^32 - 1; use fewer steps", size));
}

class BlendedSource : public SampleSource {
 public:
  BlendedSource(std::vector<std::unique_ptr<SampleSource>> sources, std::vector<BlendedSample> order,
                const std::vector<double>& weights, const DataArguments& arguments)
      : sources_(std::move(sources)), order_(std::move(order)), weights_(weights), arguments_(arguments) {
    for (const auto& source : sources_) name_ += (name_.empty() ? "" : ", ") + source->name();
    for (const auto& source : sources_) check_media(*source);
  }

  int64_t size() const override { return static_cast<int64_t>(order_.size()) * rows(); }
  Sample at(int64_t index) const override {
    const BlendedSample& sample = order_[static_cast<size_t>(index / rows())];
    return sources_[sample.source]->at(place_in(sample) * rows() + index % rows());
  }
  int64_t length(int64_t index) const override {
    const BlendedSample& sample = order_[static_cast<size_t>(index / rows())];
    return sources_[sample.source]->length(place_in(sample) * rows() + index % rows());
  }
  bool is_shuffled() const override { return true; }
  bool joins_documents() const override {
    return std::ranges::all_of(sources_, [](const auto& source) { return source->joins_documents(); });
  }
  // Excludes the number of samples: a longer run starts with those of a shorter one if its sources do.
  DataIdentity identity() const override {
    DataIdentity identity;
    for (size_t i = 0; i < sources_.size(); ++i) {
      for (const auto& [name, value] : sources_[i]->identity()) {
        identity.emplace_back(fmt::format("source {}: {}", i + 1, name), value);
      }
      if (!weights_.empty()) {
        identity.emplace_back(fmt::format("source {}: weight", i + 1), fmt::format("{}", weights_[i]));
      }
    }
    return identity;
  }
  std::string cut_text() const override {
    std::string text;
    for (const auto& source : sources_) {
      const std::string cut = source->cut_text();
      if (!cut.empty()) text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", source->name(), cut);
    }
    return text;
  }
  const MediaFormat* media_format() const override {
    const auto found = std::ranges::find_if(sources_, [](const auto& each) { return each->media_format() != nullptr; });
    return found == sources_.end() ? nullptr : (*found)->media_format();
  }
  std::vector<int64_t> media_patches(int64_t index) const override {
    const BlendedSample& sample = order_[static_cast<size_t>(index / rows())];
    return sources_[sample.source]->media_patches(place_in(sample) * rows() + index % rows());
  }
  const std::string& name() const override { return name_; }

 private:
  int64_t rows() const { return arguments_.rows_per_sample(); }

  void check_media(const SampleSource& source) const {
    const MediaFormat *first = media_format(), *own = source.media_format();
    if (own == nullptr || *own == *first) return;
    throw ConfigError(fmt::format("{}: images of {} were converted differently; build all with one image processor",
                                  name_, source.name()));
  }

  // Individual samples, or pairs, are shuffled here, differently in every pass.
  int64_t place_in(const BlendedSample& sample) const {
    const SampleSource& source = *sources_[sample.source];
    const int64_t samples = source.size() / rows();
    const int64_t pass = sample.index / samples, place = sample.index % samples;
    const bool shuffle = arguments_.shuffle && !(source.is_shuffled() && pass == 0);
    return shuffle ? SampleOrder(arguments_.seed, pass, samples, true).at(place) : place;
  }

  std::vector<std::unique_ptr<SampleSource>> sources_;
  std::vector<BlendedSample> order_;
  std::vector<double> weights_;
  DataArguments arguments_;
  std::string name_;
};

}  // namespace

Blend parse_blend(const std::vector<std::string>& list) {
  Blend blend;
  const bool has_weights = list.size() % 2 == 0 && !list.empty() && number_in(list.front()).has_value();
  if (list.size() / (has_weights ? 2 : 1) > kMaxSources) {
    throw ConfigError(fmt::format("a blend has {} entries; the most are {} sources", list.size(), kMaxSources));
  }
  if (!has_weights) {
    for (const std::string& each : list) {
      if (!number_in(each)) continue;
      throw ConfigError(fmt::format(
          "a blend has the number {} among its paths; give a weight before every path (0.3,a,0.7,b), or none", each));
    }
    blend.paths = list;
    return blend;
  }
  for (size_t i = 0; i < list.size(); i += 2) {
    const std::optional<double> weight = number_in(list[i]);
    if (!weight || !(*weight > 0) || !std::isfinite(*weight)) {
      throw ConfigError(fmt::format("a blend has {} as the weight of {}; must be a number > 0", quoted(list[i]),
                                    quoted(list[i + 1])));
    }
    blend.weights.push_back(*weight);
    blend.paths.push_back(list[i + 1]);
  }
  return blend;
}

std::vector<BlendedSample> blend_by_weights(const std::vector<double>& weights, int64_t size) {
  check_size(size);
  std::vector<BlendedSample> order(static_cast<size_t>(size));
  std::vector<int64_t> drawn(weights.size());
  const std::vector<size_t> sources = all_of(weights.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t source = neediest(sources, weights, drawn, static_cast<int64_t>(i));
    order[i] = {static_cast<uint16_t>(source), static_cast<uint32_t>(drawn[source]++)};
  }
  return order;
}

std::vector<BlendedSample> blend_all(const std::vector<int64_t>& sizes) {
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  check_size(total);
  std::vector<double> weights;
  for (const int64_t size : sizes) weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  std::vector<size_t> open = all_of(sizes.size());
  std::vector<int64_t> drawn(sizes.size());
  std::vector<BlendedSample> order(static_cast<size_t>(total));
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t source = neediest(open, weights, drawn, static_cast<int64_t>(i));
    order[i] = {static_cast<uint16_t>(source), static_cast<uint32_t>(drawn[source]++)};
    if (drawn[source] == sizes[source]) std::erase(open, source);
  }
  return order;
}

BlendSizes blend_sizes(const std::vector<double>& weights, int64_t size) {
  BlendSizes sizes;
  for (const double weight : weights) {
    const double contributed = std::ceil(static_cast<double>(size) * weight);
    sizes.contributed.push_back(static_cast<int64_t>(contributed));
    sizes.asked_for.push_back(static_cast<int64_t>(std::ceil(contributed * (1 + kSurplus))));
    sizes.total += sizes.contributed.back();
  }
  return sizes;
}

std::unique_ptr<SampleSource> open_blend(const DataArguments& arguments) {
  const Blend blend = parse_blend(arguments.blend);
  if (!blend.weights.empty() && !arguments.samples_wanted) {
    throw ConfigError(fmt::format(
        "a blend with weights ({}, ...) has no end of its own; give max_steps for training data and eval_iters for "
        "validation and test data, or remove the weights to read every source once",
        blend.paths.front()));
  }
  const std::vector<double> weights = normalized(blend.weights);
  const BlendSizes sizes = blend_sizes(weights, arguments.samples_wanted.value_or(0));
  std::vector<std::unique_ptr<SampleSource>> sources;
  for (size_t i = 0; i < blend.paths.size(); ++i) {
    DataArguments one = arguments;
    one.blend.clear();
    one.path = blend.paths[i];
    one.blended_sets.clear();
    if (!arguments.blended_sets.empty()) one.dataset = arguments.blended_sets.at(i);
    one.samples_wanted = std::nullopt;
    if (!weights.empty()) one.samples_wanted = sizes.asked_for[i];
    sources.push_back(open_sample_source(one));
  }
  std::vector<int64_t> lengths;
  for (const auto& source : sources) lengths.push_back(source->size() / arguments.rows_per_sample());
  // Megatron divides by the sum once more here, which may change the last bits.
  std::vector<BlendedSample> order =
      weights.empty() ? blend_all(lengths) : blend_by_weights(normalized(weights), sizes.total);
  return std::make_unique<BlendedSource>(std::move(sources), std::move(order), weights, arguments);
}

}  // namespace concord
