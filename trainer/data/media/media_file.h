// A file of samples with images and videos: a safetensors file of tokens and patches, one shard of a data set
// (media_set.h).
//
//   input_ids, labels   I32 [T]                    samples one after the other, with a token for each merged patch;
//                                                  labels are aligned as HF's, -100 on these
//   sample_starts       I64 [S + 1]                [0, ..., T]
//   pixels              U8 [P, 3 patch patch]      patches of images before normalization, in the order of
//                                                  transformers' processors
//   video_pixels        U8 [Q, 3 times patch patch]  patches of videos; absent if there are none
//   grid_thw            I32 [M, 3]                 media: groups of frames (1 for images), rows and columns of patches
//   media_sample        I32 [M]                    the sample of each
//   media_kind          U8 [M]                     1: image, 2: video, as mm_token_type_ids; absent: images
//   seconds_per_group   F32 [M]                    videos: second_per_grid_ts of Qwen 2.5 VL; absent: 1
//   sources             U8 [bytes]                 SampleMedia::sources; absent: unknown
//   margins             F64 [S / 2]                preference pairs: "margin" of each; otherwise absent
//
// The metadata has "concord_media", the MediaFormat as JSON. In preference pairs, samples 2i and 2i + 1 are a chosen
// and a rejected answer with the same media, which belong to the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/safetensors/reader.h"
#include "trainer/data/media/media_settings.h"
#include "trainer/data/text/tokenizer.h"
#include "trainer/data/token_batch.h"

namespace concord {

// The media of a sample, and their patches in a file.
struct MediaView {
  std::span<const Medium> media;
  std::span<const std::byte> image_patches;
  std::span<const std::byte> video_patches;
  std::string_view sources = {};  // as in SampleMedia
};

// Returns the normalized pixels.
BatchMedia to_batch_media(const MediaView& view, const MediaFormat& format);
BatchMedia to_batch_media(const SampleMedia& sample, const MediaFormat& format);

// Writes a file, sample by sample. Tokens are held in memory, patches in a temporary file. Threads: one at a time.
class MediaFileBuilder {
 public:
  MediaFileBuilder(std::string path, const MediaFormat& format, bool pairs = false);
  ~MediaFileBuilder();
  MediaFileBuilder(const MediaFileBuilder&) = delete;
  MediaFileBuilder& operator=(const MediaFileBuilder&) = delete;

  // Throws ConfigError unless there is a token for each merged patch. |sample| and |view| are empty for the second half
  // of a pair.
  void add(const TokensAndLabels& tokens, const SampleMedia& sample, double margin = 0);
  void add(const TokensAndLabels& tokens, const MediaView& view, double margin = 0);
  int64_t samples() const { return std::ssize(starts_) - 1; }
  // Writes the file, which appears when it is complete.
  void finish();

 private:
  class Spool;
  void add_tokens(const TokensAndLabels& tokens, std::span<const Medium> media, std::string_view sources,
                  double margin);

  std::string path_;
  MediaFormat format_;
  bool pairs_;
  std::vector<int32_t> ids_, labels_;
  std::vector<int64_t> starts_ = {0};
  std::vector<Medium> media_;
  std::vector<int32_t> media_sample_;
  std::string sources_;
  std::vector<double> margins_;
  std::unique_ptr<Spool> image_patches_, video_patches_;
};

// An opened file, whose patches are mapped. Threads: any.
class MediaFile {
 public:
  // Throws ConfigError, with the tensor and the numbers, for tensors that do not belong together.
  explicit MediaFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const MediaFormat& format() const { return format_; }
  bool has_pairs() const { return has_pairs_; }
  int64_t samples() const { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t tokens() const { return starts_.back(); }
  std::span<const Medium> media() const { return media_; }  // media of all samples

  TokensAndLabels sample(int64_t index) const;
  double margin(int64_t sample) const { return has_pairs_ ? margins_[static_cast<size_t>(sample / 2)] : 0; }
  std::span<const Medium> media(int64_t sample) const { return view(sample).media; }
  MediaView view(int64_t sample) const;
  int64_t bytes(int64_t sample) const;  // of its tokens and patches
  void release(const MediaView& view) const;

 private:
  void read_format();
  void read_starts();
  void read_margins();
  void read_media();
  void place_media(std::span<const int32_t> owners);
  void read_sources();
  void check_sample(int64_t index) const;
  std::string_view sources(size_t sample) const;
  [[noreturn]] void refuse(const std::string& why) const;

  safetensors::Reader file_;
  MediaFormat format_;
  bool has_pairs_ = false;
  std::vector<double> margins_;  // of pairs
  std::vector<int64_t> starts_;  // tokens of samples
  std::vector<Medium> media_;
  std::vector<int64_t> first_media_;                            // index of the first medium, per sample, and the end
  std::vector<int64_t> first_image_patch_, first_video_patch_;  // per sample, and the end
  std::vector<int64_t> first_source_;  // byte of its first line, per sample, and the end; empty: there are none
};

}  // namespace concord
