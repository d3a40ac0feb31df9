#include "trainer/data/media/media_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/files/new_file.h"
#include "core/safetensors/writer.h"

namespace concord {
namespace {

using safetensors::DType;
using safetensors::Reader;
using safetensors::TensorInfo;
using safetensors::TensorShape;

constexpr const char* kFormatKey = "concord_media";
constexpr uint8_t kImage = 1, kVideo = 2;

const TensorInfo* find_as(const Reader& file, const char* name, DType dtype, size_t dims) {
  const TensorInfo* const tensor = file.find(name);
  if (tensor == nullptr || (tensor->dtype == dtype && tensor->shape.size() == dims)) return tensor;
  throw ConfigError(fmt::format("{}: {} is {} {}; must be {} with {} dims", file.path(), name,
                                safetensors::to_string(tensor->dtype), safetensors::shape_text(tensor->shape),
                                safetensors::to_string(dtype), dims));
}

const TensorInfo& get_as(const Reader& file, const char* name, DType dtype, size_t dims) {
  file.at(name);  // throws if it does not exist
  return *find_as(file, name, dtype, dims);
}

template <class Value>
std::vector<Value> values_of(const Reader& file, const TensorInfo& tensor, int64_t begin, int64_t end) {
  std::vector<Value> values(static_cast<size_t>(end - begin));
  const auto data = file.data(tensor).subspan(static_cast<size_t>(begin) * sizeof(Value));
  if (!values.empty()) std::memcpy(values.data(), data.data(), values.size() * sizeof(Value));
  return values;
}

template <class Value>
std::vector<Value> all_of(const Reader& file, const TensorInfo& tensor) {
  return values_of<Value>(file, tensor, 0, tensor.elements());
}

template <class Value>
std::span<const std::byte> bytes_of(const std::vector<Value>& values) {
  return std::as_bytes(std::span(values));
}

// Throws ConfigError unless |ids| have a token for each merged patch of |media|.
void check_media_tokens(std::span<const int64_t> ids, std::span<const Medium> media, const MediaFormat& format) {
  for (const bool is_video : {false, true}) {
    int64_t wanted = 0;
    for (const Medium& each : media) wanted += each.is_video == is_video ? each.grid.tokens(format.merge_size) : 0;
    const int64_t token = is_video ? format.video_token : format.image_token;
    const int64_t found = token < 0 ? 0 : std::ranges::count(ids, token);
    if (found == wanted) continue;
    throw ConfigError(fmt::format("has {} {} tokens (id {}), but its {}s have {} merged patches", found,
                                  is_video ? "video" : "image", token, is_video ? "video" : "image", wanted));
  }
}

}  // namespace

BatchMedia to_batch_media(const MediaView& view, const MediaFormat& format) {
  BatchMedia batch;
  for (const Medium& each : view.media) {
    (each.is_video ? batch.videos : batch.images).push_back(each.grid);
    if (each.is_video) batch.seconds_per_group.push_back(each.seconds);
  }
  std::array<std::array<float, 256>, 3> normalized;  // per channel and value
  for (size_t channel = 0; channel < normalized.size(); ++channel) {
    const auto mean = static_cast<float>(format.mean[channel]), deviation = static_cast<float>(format.std[channel]);
    for (size_t value = 0; value < 256; ++value) {
      normalized[channel][value] = (static_cast<float>(value) - mean) / deviation;
    }
  }
  const auto plane = static_cast<size_t>(format.patch_size * format.patch_size);  // values of one channel of a frame
  const auto add = [&](std::span<const std::byte> patches, int64_t frames, int64_t repeats, std::vector<float>* to) {
    to->resize(patches.size() * static_cast<size_t>(repeats));
    float* next = to->data();
    for (size_t begin = 0; begin < patches.size(); begin += plane) {
      const auto& values = normalized[begin / plane / static_cast<size_t>(frames) % normalized.size()];
      for (int64_t time = 0; time < repeats; ++time) {
        for (const std::byte value : patches.subspan(begin, plane)) *next++ = values[static_cast<size_t>(value)];
      }
    }
  };
  add(view.image_patches, 1, format.temporal_patch_size, &batch.image_pixels);
  add(view.video_patches, format.temporal_patch_size, 1, &batch.video_pixels);
  return batch;
}

BatchMedia to_batch_media(const SampleMedia& sample, const MediaFormat& format) {
  BatchMedia batch;
  std::span<const std::byte> left = std::as_bytes(std::span(sample.patches));
  for (const Medium& each : sample.media) {
    const std::span<const std::byte> own =
        left.first(static_cast<size_t>(each.grid.patches() * format.patch_bytes(each.is_video)));
    left = left.subspan(own.size());
    const std::span<const Medium> one(&each, 1);
    batch.append(to_batch_media(each.is_video ? MediaView{one, {}, own} : MediaView{one, own, {}}, format));
  }
  return batch;
}

// Bytes in a file without a name.
class MediaFileBuilder::Spool {
 public:
  explicit Spool(const std::string& path) : path_(path), file_(create_fresh_file(path)) {
    if (file_) reader_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!reader_) throw std::runtime_error(write_error_text(path, errno));
    ::unlink(path.c_str());
  }

  uint64_t size() const { return size_; }

  void append(std::span<const std::byte> bytes) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (const int error = write_all(file_.get(), text)) throw std::runtime_error(write_error_text(path_, error));
    size_ += bytes.size();
  }

  void copy_to(const char* name, safetensors::Writer* file) const {
    std::vector<std::byte> piece(1 << 20);
    for (uint64_t done = 0; done < size_;) {
      const ssize_t got = ::pread(reader_.get(), piece.data(), piece.size(), static_cast<off_t>(done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0)
        throw std::runtime_error(fmt::format("{}: {}", path_, got < 0 ? std::strerror(errno) : "truncated"));
      file->write(name, done, std::span(piece).first(static_cast<size_t>(got)));
      done += static_cast<uint64_t>(got);
    }
  }

 private:
  std::string path_;
  UniqueFd file_, reader_;
  uint64_t size_ = 0;
};

MediaFileBuilder::MediaFileBuilder(std::string path, const MediaFormat& format, bool pairs)
    : path_(std::move(path)),
      format_(format),
      pairs_(pairs),
      image_patches_(std::make_unique<Spool>(path_ + ".images")),
      video_patches_(std::make_unique<Spool>(path_ + ".videos")) {}

MediaFileBuilder::~MediaFileBuilder() = default;

void MediaFileBuilder::add_tokens(const TokensAndLabels& tokens, std::span<const Medium> media,
                                  std::string_view sources, double margin) {
  const auto sample = static_cast<int32_t>(samples());
  const bool is_first_half = pairs_ && sample % 2 == 0;
  if (is_first_half) margins_.push_back(margin);
  media_.insert(media_.end(), media.begin(), media.end());
  media_sample_.insert(media_sample_.end(), media.size(), sample);
  sources_ += sources.empty() ? std::string(media.size(), '\n') : std::string(sources);
  const int32_t owner = pairs_ && !is_first_half ? sample - 1 : sample;  // a pair shares its media
  const auto first = std::ranges::lower_bound(media_sample_, owner) - media_sample_.begin();
  check_media_tokens(tokens.ids, std::span(media_).subspan(static_cast<size_t>(first)), format_);
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  std::ranges::transform(tokens.ids, std::back_inserter(ids_), narrow);
  std::ranges::transform(tokens.labels, std::back_inserter(labels_), narrow);
  starts_.push_back(std::ssize(ids_));
}

void MediaFileBuilder::add(const TokensAndLabels& tokens, const MediaView& view, double margin) {
  add_tokens(tokens, view.media, view.sources, margin);
  image_patches_->append(view.image_patches);
  video_patches_->append(view.video_patches);
}

void MediaFileBuilder::add(const TokensAndLabels& tokens, const SampleMedia& sample, double margin) {
  add_tokens(tokens, sample.media, sample.sources, margin);
  std::span<const std::byte> left = std::as_bytes(std::span(sample.patches));
  for (const Medium& each : sample.media) {
    const auto own = static_cast<size_t>(each.grid.patches() * format_.patch_bytes(each.is_video));
    (each.is_video ? video_patches_ : image_patches_)->append(left.first(own));
    left = left.subspan(own);
  }
}

void MediaFileBuilder::finish() {
  const auto tokens = std::ssize(ids_), media = std::ssize(media_);
  const auto rows = [&](const Spool& spool, bool is_video) {
    return static_cast<int64_t>(spool.size()) / format_.patch_bytes(is_video);
  };
  std::vector<int32_t> grids;
  std::vector<uint8_t> kinds;
  std::vector<float> seconds;
  for (const Medium& each : media_) {
    for (const int64_t size : {each.grid.frames, each.grid.rows, each.grid.columns}) {
      grids.push_back(static_cast<int32_t>(size));
    }
    kinds.push_back(each.is_video ? kVideo : kImage);
    seconds.push_back(static_cast<float>(each.seconds));
  }
  safetensors::Metadata metadata = safetensors::pytorch_metadata();
  metadata[kFormatKey] = to_text(format_);
  std::vector<TensorShape> tensors = {
      {"input_ids", DType::kI32, {tokens}},
      {"labels", DType::kI32, {tokens}},
      {"sample_starts", DType::kI64, {std::ssize(starts_)}},
      {"pixels", DType::kU8, {rows(*image_patches_, false), format_.image_patch_bytes()}},
      {"video_pixels", DType::kU8, {rows(*video_patches_, true), format_.video_patch_bytes()}},
      {"grid_thw", DType::kI32, {media, 3}},
      {"media_sample", DType::kI32, {media}},
      {"media_kind", DType::kU8, {media}},
      {"seconds_per_group", DType::kF32, {media}},
      {"sources", DType::kU8, {std::ssize(sources_)}}};
  if (pairs_) tensors.push_back({"margins", DType::kF64, {std::ssize(margins_)}});
  safetensors::Writer file(path_, std::move(tensors), metadata);
  file.write("input_ids", 0, bytes_of(ids_));
  file.write("labels", 0, bytes_of(labels_));
  file.write("sample_starts", 0, bytes_of(starts_));
  image_patches_->copy_to("pixels", &file);
  video_patches_->copy_to("video_pixels", &file);
  file.write("grid_thw", 0, bytes_of(grids));
  file.write("media_sample", 0, bytes_of(media_sample_));
  file.write("media_kind", 0, bytes_of(kinds));
  file.write("seconds_per_group", 0, bytes_of(seconds));
  file.write("sources", 0, std::as_bytes(std::span(sources_)));
  if (pairs_) file.write("margins", 0, bytes_of(margins_));
  file.finish();
}

MediaFile::MediaFile(const std::string& path) : file_(path) {
  read_format();
  read_starts();
  read_margins();
  read_media();
  read_sources();
  for (int64_t i = 0; i < samples(); ++i) check_sample(i);
}

void MediaFile::refuse(const std::string& why) const { throw ConfigError(fmt::format("{}: {}", path(), why)); }

void MediaFile::read_format() {
  const auto found = file_.metadata().find(kFormatKey);
  if (found == file_.metadata().end()) {
    refuse(fmt::format("its metadata has no {}; write such files with concord data build --images", kFormatKey));
  }
  format_ = parse_media_format(found->second, path());
}

void MediaFile::read_starts() {
  const TensorInfo& ids = get_as(file_, "input_ids", DType::kI32, 1);
  const TensorInfo& labels = get_as(file_, "labels", DType::kI32, 1);
  starts_ = all_of<int64_t>(file_, get_as(file_, "sample_starts", DType::kI64, 1));
  const bool is_whole = !starts_.empty() && starts_.front() == 0 && starts_.back() == ids.elements() &&
                        std::ranges::is_sorted(starts_) && labels.shape == ids.shape;
  if (!is_whole) {
    refuse(fmt::format("sample_starts must ascend from 0 to the {} tokens of input_ids and labels", ids.elements()));
  }
}

void MediaFile::read_margins() {
  const TensorInfo* const margins = find_as(file_, "margins", DType::kF64, 1);
  has_pairs_ = margins != nullptr;
  if (!has_pairs_) return;
  margins_ = all_of<double>(file_, *margins);
  const bool are_finite = std::ranges::all_of(margins_, [](double margin) { return std::isfinite(margin); });
  if (are_finite && 2 * std::ssize(margins_) == samples()) return;
  refuse(fmt::format("margins must be finite, and half as many as the {} samples", samples()));
}

void MediaFile::read_media() {
  const TensorInfo& grids = get_as(file_, "grid_thw", DType::kI32, 2);
  const auto sizes = all_of<int32_t>(file_, grids);
  const auto owners = all_of<int32_t>(file_, get_as(file_, "media_sample", DType::kI32, 1));
  if (sizes.size() != 3 * owners.size() || grids.shape[1] != 3) refuse("grid_thw must have 3 numbers for each medium");
  std::vector<uint8_t> kinds(owners.size(), kImage);
  std::vector<float> seconds(owners.size(), 1);
  if (const TensorInfo* given = find_as(file_, "media_kind", DType::kU8, 1)) kinds = all_of<uint8_t>(file_, *given);
  if (const TensorInfo* given = find_as(file_, "seconds_per_group", DType::kF32, 1)) {
    seconds = all_of<float>(file_, *given);
  }
  if (kinds.size() != owners.size() || seconds.size() != owners.size()) {
    refuse(fmt::format("media_kind and seconds_per_group must have a value for each of the {} media", owners.size()));
  }
  constexpr int64_t kMaxSide = 1 << 20;
  for (size_t i = 0; i < owners.size(); ++i) {
    const MediaGrid grid{sizes[3 * i], sizes[3 * i + 1], sizes[3 * i + 2]};
    const bool is_video = kinds[i] == kVideo;
    const bool fits = std::min({grid.frames, grid.rows, grid.columns}) > 0 &&
                      std::max({grid.frames, grid.rows, grid.columns}) <= kMaxSide && (is_video || grid.frames == 1) &&
                      grid.rows % format_.merge_size == 0 && grid.columns % format_.merge_size == 0;
    if (!fits) {
      refuse(fmt::format("{} {} has the grid {} x {} x {}", is_video ? "video" : "image", i, grid.frames, grid.rows,
                         grid.columns));
    }
    if (kinds[i] != kImage && !is_video)
      refuse(fmt::format("media_kind of medium {} is {}; must be 1 or 2", i, kinds[i]));
    if (!std::isfinite(seconds[i]) || seconds[i] <= 0) {
      refuse(fmt::format("seconds_per_group of medium {} is {}; must be > 0", i, seconds[i]));
    }
    media_.push_back({.grid = grid, .is_video = is_video, .seconds = seconds[i]});
  }
  place_media(owners);
}

// Assigns media and patches to samples.
void MediaFile::place_media(std::span<const int32_t> owners) {
  const bool belong =
      std::ranges::is_sorted(owners) && (owners.empty() || (owners.front() >= 0 && owners.back() < samples()));
  if (!belong) refuse(fmt::format("media_sample must ascend, and name one of the {} samples", samples()));
  if (has_pairs_ && std::ranges::any_of(owners, [](int32_t owner) { return owner % 2 != 0; })) {
    refuse("media_sample must name the first half of a pair");
  }
  int64_t patches[2] = {0, 0};  // of images and of videos
  size_t next = 0;
  for (int64_t i = 0; i <= samples(); ++i) {
    for (; next < owners.size() && owners[next] < i; ++next) {
      if (__builtin_add_overflow(patches[media_[next].is_video], media_[next].grid.patches(),
                                 &patches[media_[next].is_video])) {
        refuse("its media have more than 2^63 patches");
      }
    }
    first_media_.push_back(static_cast<int64_t>(next));
    first_image_patch_.push_back(patches[0]);
    first_video_patch_.push_back(patches[1]);
  }
  const auto check = [&](const char* name, int64_t wanted, int64_t patch_bytes) {
    const TensorInfo* const pixels = find_as(file_, name, DType::kU8, 2);
    if (pixels == nullptr && wanted == 0) return;
    const std::vector<int64_t> shape = pixels == nullptr ? std::vector<int64_t>{0, 0} : pixels->shape;
    if (shape == std::vector{wanted, patch_bytes}) return;
    refuse(fmt::format("{} have the shape {}, but the media have {} patches of {} bytes", name,
                       safetensors::shape_text(shape), wanted, patch_bytes));
  };
  check("pixels", patches[0], format_.image_patch_bytes());
  check("video_pixels", patches[1], format_.video_patch_bytes());
}

void MediaFile::read_sources() {
  const TensorInfo* const sources = find_as(file_, "sources", DType::kU8, 1);
  if (sources == nullptr) return;
  const std::span<const std::byte> bytes = file_.data(*sources);
  if (std::ranges::count(bytes, std::byte{'\n'}) != std::ssize(media_)) {
    refuse(fmt::format("sources must have a line for each of the {} media", media_.size()));
  }
  int64_t medium = 0;
  auto at = bytes.begin();
  for (const int64_t first : first_media_) {
    for (; medium < first; ++medium) at = std::ranges::find(at, bytes.end(), std::byte{'\n'}) + 1;
    first_source_.push_back(at - bytes.begin());
  }
}

void MediaFile::check_sample(int64_t index) const {
  try {
    const TokensAndLabels tokens = sample(index);
    check_media_tokens(tokens.ids, media(index), format_);
  } catch (const ConfigError& error) {
    refuse(fmt::format("sample {}: {}", index, error.what()));
  }
}

TokensAndLabels MediaFile::sample(int64_t index) const {
  const size_t i = static_cast<size_t>(index);
  const auto ids = values_of<int32_t>(file_, file_.at("input_ids"), starts_[i], starts_[i + 1]);
  const auto labels = values_of<int32_t>(file_, file_.at("labels"), starts_[i], starts_[i + 1]);
  return {{ids.begin(), ids.end()}, {labels.begin(), labels.end()}};
}

MediaView MediaFile::view(int64_t sample) const {
  const auto i = static_cast<size_t>(has_pairs_ ? sample / 2 * 2 : sample);
  const auto part = [&](const char* name, const std::vector<int64_t>& firsts, int64_t patch_bytes) {
    const TensorInfo* const pixels = file_.find(name);
    if (pixels == nullptr) return std::span<const std::byte>();
    return file_.data(*pixels).subspan(static_cast<size_t>(firsts[i] * patch_bytes),
                                       static_cast<size_t>((firsts[i + 1] - firsts[i]) * patch_bytes));
  };
  return {.media = std::span(media_).subspan(static_cast<size_t>(first_media_[i]),
                                             static_cast<size_t>(first_media_[i + 1] - first_media_[i])),
          .image_patches = part("pixels", first_image_patch_, format_.image_patch_bytes()),
          .video_patches = part("video_pixels", first_video_patch_, format_.video_patch_bytes()),
          .sources = sources(i)};
}

std::string_view MediaFile::sources(size_t sample) const {
  if (first_source_.empty()) return {};
  const std::span<const std::byte> all = file_.data(file_.at("sources"));
  const auto begin = static_cast<size_t>(first_source_[sample]), end = static_cast<size_t>(first_source_[sample + 1]);
  return {reinterpret_cast<const char*>(all.data()) + begin, end - begin};
}

int64_t MediaFile::bytes(int64_t sample) const {
  const auto i = static_cast<size_t>(sample);
  const auto tokens = (starts_[i + 1] - starts_[i]) * static_cast<int64_t>(2 * sizeof(int32_t));
  return tokens + (first_image_patch_[i + 1] - first_image_patch_[i]) * format_.image_patch_bytes() +
         (first_video_patch_[i + 1] - first_video_patch_[i]) * format_.video_patch_bytes();
}

void MediaFile::release(const MediaView& view) const {
  file_.release(view.image_patches);
  file_.release(view.video_patches);
}

}  // namespace concord
