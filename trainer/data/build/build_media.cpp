#include "trainer/data/build/build_media.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/base/config_error.h"
#include "trainer/data/media/media_file.h"
#include "trainer/data/text/pair_reader.h"
#include "trainer/data/text/text_reader.h"

namespace concord {
namespace {

// Adds samples to a file, in the order of their lines.
class MediaPieceBuild {
 public:
  MediaPieceBuild(const BuildArguments& arguments, const BuildInput& input, const BuildShard& shard,
                  Tokenizer& tokenizer, MediaProcessor& processor, std::string path)
      : arguments_(arguments),
        input_(input),
        shard_(shard),
        processor_(processor),
        path_(std::move(path)),
        samples_(
            tokenizer, [this](const TokensAndLabels& tokens, int64_t line) { add(tokens, take_media(), line); },
            [this](int64_t line, const std::string& why) { fail(line, why); }),
        pairs_([&tokenizer]() -> Tokenizer& { return tokenizer; },
               [this](const PairReader::Pair& pair, int64_t line) {
                 add(pair.chosen, take_media(), line, pair.margin);
                 add(pair.rejected, {}, line);
               },
               [this](int64_t line, const std::string& why) { fail(line, why); }) {}

  void add_line(std::string_view line, int64_t number) {
    JsonRecord record;
    try {
      record = parse_json_record(line, "", arguments_.dataset);
    } catch (const ConfigError& error) {
      fail(number, std::string(error.what()).substr(2));  // without the ": " after an empty location
    }
    check_kind(record.kind, number);
    if (record.kind == JsonRecord::Kind::kTokens) {
      samples_.finish();
      return add(record.tokens, {}, number);
    }
    if (!convert(&record, number)) return;
    if (record.kind == JsonRecord::Kind::kPair) return pairs_.add(std::move(record), number);
    samples_.add(std::move(record.text), number);
  }

  ShardCounts finish() {
    samples_.finish();
    pairs_.finish();
    file().finish();
    return counts_;
  }

 private:
  std::string place(int64_t line) const {
    const char* const text = input_.file.data();
    return fmt::format("{}, line {}", input_.name, std::count(text, text + shard_.begin, '\n') + line);
  }
  [[noreturn]] void fail(int64_t line, const std::string& why) const {
    throw ConfigError(fmt::format("{}: {}", place(line), why));
  }

  void check_kind(JsonRecord::Kind kind, int64_t line) {
    if (kind == JsonRecord::Kind::kText) fail(line, "has \"text\"; --images needs conversations");
    const bool is_pair = kind == JsonRecord::Kind::kPair;
    if (is_pair != are_pairs_.value_or(is_pair)) {
      fail(line, "there are pairs to learn preferences from, and others; put them into separate files");
    }
    are_pairs_ = is_pair;
  }

  MediaFileBuilder& file() {
    if (!file_) file_.emplace(path_, processor_.format(), are_pairs_.value_or(false));
    return *file_;
  }

  // Converts the media of |record|. Returns false if its sample is left out.
  bool convert(JsonRecord* record, int64_t line) {
    SampleMedia media;
    if (!record->media.empty()) {
      try {
        MediaProcessor::Converted made =
            processor_.convert(record->media, std::filesystem::path(input_.name).parent_path().string());
        record->text = with_media_texts(std::move(record->text), made.texts);
        const bool is_pair = record->kind == JsonRecord::Kind::kPair;
        if (is_pair) record->rejected_text = with_media_texts(std::move(record->rejected_text), made.texts);
        media = std::move(made.media);
      } catch (const ConfigError& error) {
        if (!arguments_.media.skip_bad_images) fail(line, error.what());
        std::fprintf(stderr, "%s: %s; the sample is left out\n", place(line).c_str(), error.what());
        return false;
      }
    }
    waiting_.push_back(std::move(media));
    return true;
  }

  SampleMedia take_media() {
    SampleMedia media = std::move(waiting_.front());
    waiting_.pop_front();
    return media;
  }

  void add(const TokensAndLabels& tokens, const SampleMedia& media, int64_t line, double margin = 0) {
    try {
      file().add(tokens, media, margin);
    } catch (const ConfigError& error) {
      fail(line, error.what());
    }
    const bool is_second_half = are_pairs_.value_or(false) && file().samples() % 2 == 0;
    counts_.documents += is_second_half ? 0 : 1;
    counts_.tokens += std::ssize(tokens.ids);
  }

  const BuildArguments& arguments_;
  const BuildInput& input_;
  const BuildShard& shard_;
  MediaProcessor& processor_;
  std::string path_;
  std::optional<bool> are_pairs_;
  std::optional<MediaFileBuilder> file_;
  ShardCounts counts_;
  std::deque<SampleMedia> waiting_;  // media of samples that are being encoded
  BatchedSamples samples_;
  PairReader pairs_;
};

}  // namespace

ShardCounts build_media_piece(const BuildArguments& arguments, const BuildInput& input, const BuildShard& shard,
                              Tokenizer& tokenizer, MediaProcessor& processor, const std::string& name) {
  MediaPieceBuild build(arguments, input, shard, tokenizer, processor, name + ".safetensors");
  const std::string_view text =
      input.file.text().substr(static_cast<size_t>(shard.begin), static_cast<size_t>(shard.end - shard.begin));
  for_each_line(text, [&](std::string_view line, int64_t number) { build.add_line(line, number); });
  return build.finish();
}

}  // namespace concord
