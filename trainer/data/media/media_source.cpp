#include "trainer/data/media/media_source.h"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "core/base/config_error.h"
#include "trainer/data/build/content_hash.h"
#include "trainer/data/media/media_set.h"
#include "trainer/data/sources/row_source.h"
#include "trainer/data/sources/split.h"

namespace concord {
namespace {

// Tokens are in memory, pixels are read from the files with their sample.
class MediaSource : public SampleSource {
 public:
  MediaSource(const std::string& path, const DataArguments& arguments) : set_(path), rows_(arguments.path, arguments) {
    if (set_.has_pairs() != arguments.pairs) {
      throw ConfigError(fmt::format("{} has {}", arguments.path,
                                    arguments.pairs ? "single samples; stages dpo and rm train on pairs"
                                                    : "preference pairs; set stage: dpo or stage: rm"));
    }
    const int64_t rows = arguments.rows_per_sample(), all = set_.samples() / rows;
    const int64_t count = arguments.max_samples == 0 ? all : std::min(all, arguments.max_samples);
    for (int64_t i = 0; i < count; ++i) add(i * rows, arguments);
    rows_.finish();
  }

  int64_t size() const override { return rows_.size(); }
  int64_t length(int64_t index) const override { return rows_.length(index); }
  Sample at(int64_t index) const override;
  DataIdentity identity() const override;
  std::string cut_text() const override { return rows_.cut_text(); }
  const MediaFormat* media_format() const override { return set_.has_media() ? &set_.format() : nullptr; }
  std::vector<int64_t> media_patches(int64_t index) const override;
  const std::string& name() const override { return rows_.name(); }

 private:
  // A row may be a piece of a sample, if that has no media.
  void add(int64_t sample, const DataArguments& arguments) {
    const TokensAndLabels tokens = set_.sample(sample);
    const std::string place = fmt::format("sample {}", sample);
    if (!arguments.pairs) {
      if (loses_media(tokens.ids, arguments)) return rows_.drop();
      rows_.add(tokens, place);
      return samples_.resize(static_cast<size_t>(rows_.size()), sample);
    }
    const TokensAndLabels rejected = set_.sample(sample + 1);
    if (loses_media(tokens.ids, arguments) || loses_media(rejected.ids, arguments)) return rows_.drop();
    rows_.add(PairReader::Pair{tokens, rejected, set_.margin(sample)}, place);
    samples_.resize(static_cast<size_t>(rows_.size()), sample);  // both halves have its media
  }

  bool loses_media(const std::vector<int64_t>& ids, const DataArguments& arguments) const {
    if (arguments.cutoff_len == 0 || std::ssize(ids) <= arguments.cutoff_len) return false;
    const auto is_media = [&](int64_t id) {
      return id == set_.format().image_token || id == set_.format().video_token;
    };
    const std::ptrdiff_t kept = arguments.cutoff_len;
    if (arguments.truncation == Truncation::right) return std::any_of(ids.begin() + kept, ids.end(), is_media);
    if (arguments.truncation == Truncation::left) return std::any_of(ids.begin(), ids.end() - kept, is_media);
    return arguments.truncation == Truncation::split && std::ranges::any_of(ids, is_media);
  }

  int64_t sample_of(int64_t index) const { return samples_[static_cast<size_t>(index)]; }

  MediaSet set_;
  RowSource rows_;
  std::vector<int64_t> samples_;  // in the set, of each row
};

Sample MediaSource::at(int64_t index) const {
  Sample row = rows_.at(index);
  const MediaView view = set_.view(sample_of(index));
  row.media = to_batch_media(view, set_.format());
  set_.release(sample_of(index), view);
  return row;
}

std::vector<int64_t> MediaSource::media_patches(int64_t index) const {
  std::vector<int64_t> patches;
  for (const Medium& each : set_.media(sample_of(index))) {
    patches.insert(patches.end(), static_cast<size_t>(each.grid.frames), each.grid.rows * each.grid.columns);
  }
  return patches;
}

DataIdentity MediaSource::identity() const {
  constexpr int64_t kSamples = 1024;  // whose pixels are hashed, evenly spaced
  constexpr size_t kBytes = 4096;     // per sample and kind
  ContentHash hash;
  for (int64_t i = 0; i < size(); i += std::max<int64_t>(1, size() / kSamples)) {
    const MediaView view = set_.view(sample_of(i));
    for (const Medium& each : view.media) {
      hash.add(static_cast<uint64_t>(each.grid.rows << 32 | each.grid.columns));
      if (each.is_video) hash.add(static_cast<uint64_t>(each.grid.frames));
    }
    hash.add(view.image_patches.data(), std::min(view.image_patches.size(), kBytes));
    if (!view.video_patches.empty()) hash.add(view.video_patches.data(), std::min(view.video_patches.size(), kBytes));
  }
  DataIdentity identity = rows_.identity();
  identity.emplace_back("images", fmt::format("{:016x}", hash.value()));
  return identity;
}

}  // namespace

std::unique_ptr<SampleSource> open_media(const std::string& path, const DataArguments& arguments) {
  auto source = std::make_unique<MediaSource>(path, arguments);
  return part_of(std::move(source), arguments);
}

}  // namespace concord
