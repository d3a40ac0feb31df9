#include "core/safetensors/header.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "core/base/config_error.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"

namespace concord::safetensors {
namespace {

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw ConfigError(fmt::format("{}: {}; the file is damaged or not a safetensors file", file, why));
}

// Handles the JSON while it is parsed. Anything unexpected stops the parser, so nesting is bounded.
class HeaderSax {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  HeaderSax(const std::string& file, Header& header) : file_(file), header_(header) {}

  bool start_object(size_t) {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::entry) {
      place_ = Place::tensor;
    } else if (place_ == Place::metadata_entry) {
      place_ = Place::metadata;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool end_object() {
    if (place_ == Place::tensor) finish_tensor();
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

  bool key(const string_t& text) {
    if (place_ == Place::top) {
      if (!names_.insert(text).second) refuse(file_, fmt::format("duplicate name {} in the header", quoted(text)));
      name_ = text;
      tensor_ = {};
      seen_ = {};
      place_ = text == "__metadata__" ? Place::metadata_entry : Place::entry;
    } else if (place_ == Place::metadata) {
      key_ = text;
      if (header_.metadata.count(text) != 0) refuse(file_, fmt::format("__metadata__ has {} twice", quoted(text)));
    } else {
      tensor_key(text);
    }
    return true;
  }

  bool string(const string_t& text) {
    if (place_ == Place::metadata) {
      header_.metadata[key_] = text;
    } else if (place_ == Place::tensor && key_ == "dtype") {
      const std::optional<DType> dtype = parse_dtype(text);
      if (!dtype)
        refuse(file_,
               fmt::format("tensor {} has dtype {}; must be one of {}", quoted(name_), quoted(text), dtype_list()));
      tensor_.dtype = *dtype;
    } else {
      unexpected(fmt::format("the string {}", quoted(text)));
    }
    return true;
  }

  bool start_array(size_t) {
    if (place_ != Place::tensor || key_ == "dtype") unexpected("a list");
    place_ = Place::list;
    return true;
  }

  bool end_array() {
    place_ = Place::tensor;
    if (key_ == "data_offsets" && offsets_.size() != 2) {
      refuse(file_, fmt::format("tensor {} has {} data_offsets; expected 2", quoted(name_), offsets_.size()));
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) {
    if (place_ != Place::list) unexpected(fmt::format("the number {}", value));
    if (key_ == "data_offsets") {
      if (offsets_.size() == 2) refuse(file_, fmt::format("tensor {} has more than 2 data_offsets", quoted(name_)));
      offsets_.push_back(value);
    } else {
      if (value > INT64_MAX) unexpected(fmt::format("the number {}", value));
      if (tensor_.shape.size() == kMaxDims)
        refuse(file_, fmt::format("tensor {} has more than {} dimensions", quoted(name_), kMaxDims));
      tensor_.shape.push_back(static_cast<int64_t>(value));
    }
    return true;
  }

  bool number_integer(number_integer_t value) { return unexpected(fmt::format("the number {}", value)); }
  bool number_float(number_float_t, const string_t& text) {
    return unexpected(fmt::format("the number {}", quoted(text)));
  }
  bool null() { return unexpected("null"); }
  bool boolean(bool value) { return unexpected(value ? "true" : "false"); }
  bool binary(binary_t&) { return unexpected("binary data"); }

  bool parse_error(size_t position, const std::string& token, const nlohmann::json::exception&) {
    refuse(file_, fmt::format("its header is not JSON: at byte {} after {}", position, quoted(token)));
  }

 private:
  enum class Place { outside, top, entry, metadata_entry, tensor, metadata, list };
  struct Seen {
    bool dtype = false, shape = false, offsets = false;
  };

  void tensor_key(const string_t& text) {
    bool* seen = text == "dtype"          ? &seen_.dtype
                 : text == "shape"        ? &seen_.shape
                 : text == "data_offsets" ? &seen_.offsets
                                          : nullptr;
    if (seen == nullptr)
      refuse(file_,
             fmt::format("tensor {} has {}; allowed are dtype, shape and data_offsets", quoted(name_), quoted(text)));
    if (std::exchange(*seen, true)) refuse(file_, fmt::format("tensor {} has {} twice", quoted(name_), text));
    key_ = text;
    if (text == "data_offsets") offsets_.clear();
  }

  void finish_tensor() {
    const char* missing = !seen_.dtype ? "dtype" : !seen_.shape ? "shape" : !seen_.offsets ? "data_offsets" : nullptr;
    if (missing != nullptr) refuse(file_, fmt::format("tensor {} has no {}", quoted(name_), missing));
    tensor_.name = name_;
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
    header_.tensors.push_back(std::move(tensor_));
  }

  bool unexpected(const std::string& what) const {
    std::string where = "at the top level";
    if (place_ == Place::entry) where = fmt::format("instead of tensor {}", quoted(name_));
    if (place_ == Place::metadata || place_ == Place::metadata_entry)
      where = "in __metadata__, which maps strings to strings";
    if (place_ == Place::tensor || place_ == Place::list)
      where = fmt::format("as {} of tensor {}", key_, quoted(name_));
    refuse(file_, fmt::format("its header has {} {}", what, where));
  }

  const std::string& file_;
  Header& header_;
  Place place_ = Place::outside;
  std::unordered_set<std::string> names_;
  std::string name_;  // of the current tensor
  std::string key_;   // in the tensor or the metadata
  TensorInfo tensor_;
  Seen seen_;
  std::vector<uint64_t> offsets_;
};

void check_tensor(const TensorInfo& tensor, uint64_t data_bytes, const std::string& file) {
  const auto offsets = [&] { return fmt::format("data_offsets [{}, {}]", tensor.begin, tensor.end); };
  if (tensor.begin > tensor.end || tensor.end > data_bytes) {
    refuse(file, fmt::format("tensor {} has {}, but the file has {} bytes of data", quoted(tensor.name), offsets(),
                             data_bytes));
  }
  const uint64_t bytes = tensor_bytes(tensor, file);
  if (tensor.bytes() != bytes) {
    refuse(file, fmt::format("tensor {} of {} in {} takes {} bytes, but its {} are {}", quoted(tensor.name),
                             shape_text(tensor.shape), to_string(tensor.dtype), bytes, offsets(), tensor.bytes()));
  }
}

// Throws unless the tensors are contiguous in data order.
void check_cover(const std::vector<TensorInfo>& tensors, uint64_t data_bytes, const std::string& file) {
  uint64_t end = 0;
  const TensorInfo* before = nullptr;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin != end) {
      const std::string other =
          before != nullptr ? fmt::format("tensor {}", quoted(before->name)) : std::string("the header");
      refuse(file, fmt::format("tensor {} begins at byte {} of the data, but {} ends at {}{}", quoted(tensor.name),
                               tensor.begin, other, end, tensor.begin < end ? ": they overlap" : ": there is a gap"));
    }
    end = tensor.end;
    before = &tensor;
  }
  if (end != data_bytes) {
    refuse(file, fmt::format("the file has {} bytes of data, but its last tensor {}ends at {}", data_bytes,
                             before != nullptr ? fmt::format("{} ", quoted(before->name)) : std::string(), end));
  }
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

uint64_t tensor_bytes(const TensorShape& tensor, const std::string& file) {
  int64_t bytes = size_of(tensor.dtype);
  for (const int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) {
      refuse(file, fmt::format("tensor {} of {} in {} has a byte size that overflows 63 bits", quoted(tensor.name),
                               shape_text(tensor.shape), to_string(tensor.dtype)));
    }
  }
  return static_cast<uint64_t>(bytes);
}

uint64_t header_length(std::string_view begin_of_file, uint64_t file_bytes, const std::string& file) {
  if (begin_of_file.size() < kLengthBytes) {
    refuse(file, fmt::format("it has {} bytes, but the header length alone takes {}", file_bytes, kLengthBytes));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{static_cast<unsigned char>(begin_of_file[i])} << (8 * i);
  if (length > kMaxHeaderBytes)
    refuse(file, fmt::format("its header length is {} bytes; must be <= {}", length, kMaxHeaderBytes));
  if (length > file_bytes - kLengthBytes) {
    refuse(file, fmt::format("its header length is {} bytes, but the file has only {}", length, file_bytes));
  }
  return length;
}

Header parse_header(std::string_view json, uint64_t data_bytes, const std::string& file) {
  refuse_zero_byte(json, fmt::format("{}: its header", file));
  Header header;
  HeaderSax sax(file, header);
  nlohmann::json::sax_parse(json.begin(), json.end(), &sax);
  const auto place = [](const TensorInfo& tensor) { return std::pair(tensor.begin, tensor.end); };
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [&](const TensorInfo& a, const TensorInfo& b) { return place(a) < place(b); });
  for (const TensorInfo& tensor : header.tensors) check_tensor(tensor, data_bytes, file);
  check_cover(header.tensors, data_bytes, file);
  return header;
}

}  // namespace concord::safetensors
