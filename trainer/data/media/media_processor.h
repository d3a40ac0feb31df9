// HF's processor of a model in a separate process: images and videos to patches, while data is built.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/data/media/media_settings.h"
#include "trainer/data/text/python_process.h"
#include "trainer/data/text/tokenizer_pipe.h"

namespace concord {

// Whether |folder| has the settings of an image processor.
bool has_media_processor(const std::string& folder);
// The texts of the settings of its processors, for comparison; empty if there are none.
std::string media_processor_text(const std::string& folder);

// Starts Python (CONCORD_PYTHON, otherwise python3) with trainer/data/media/media_process.py, which is compiled into
// the program. Limits and the end of the child are those of TokenizerProcess. Threads: one at a time.
class MediaProcessor {
 public:
  // Throws ConfigError if Python or a module is missing, and for a model whose images are not supported.
  explicit MediaProcessor(const MediaSettings& settings);

  const MediaFormat& format() const { return format_; }

  struct Converted {
    SampleMedia media;
    // JSON for Tokenizer::encode_samples(): the text that replaces each placeholder of the chat template.
    std::string texts;
  };
  // Relative paths are in |folder| unless media_dir is set. Throws ConfigError, with the medium and the reason, for one
  // that cannot be read.
  Converted convert(const std::vector<RecordMedium>& media, const std::string& folder);

 private:
  MediaSettings settings_;
  PythonProcess process_;
  std::unique_ptr<TokenizerPipe> pipe_;  // closed first, so that the child exits by itself
  MediaFormat format_;
};

// Returns |sample|, a JSON object for Tokenizer::encode_samples(), with |texts| of its media.
std::string with_media_texts(std::string sample, const std::string& texts);

}  // namespace concord
