// Any bytes as the output of a tokenizer process: either rejected with a message, or ids of its vocabulary.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "tests/fuzz/check.h"
#include "trainer/data/text/tokenizer_pipe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace concord;
  constexpr const char* kName = "the fuzzer";
  constexpr size_t kRoom = 1 << 16;  // a socket buffers this much without a reader
  int asked[2], said[2];
  fuzz::check(::socketpair(AF_UNIX, SOCK_STREAM, 0, asked) == 0 && ::socketpair(AF_UNIX, SOCK_STREAM, 0, said) == 0,
              "there are sockets");
  const auto count = static_cast<ssize_t>(std::min(size, kRoom));
  fuzz::check(::write(said[1], data, static_cast<size_t>(count)) == count, "all of it is said");
  ::close(said[1]);
  try {
    TokenizerPipe pipe(UniqueFd{asked[0]}, UniqueFd{said[0]}, kName, std::chrono::seconds(10));
    const TokenizerGreeting greeting = pipe.read_greeting();
    fuzz::check(greeting.end_of_document.value_or(0) >= 0, "ids are not negative");
    fuzz::check(greeting.end_of_text.value_or(0) < std::max<int64_t>(greeting.vocab_size, 1), "ids are of it");
    const auto check_ids = [&](const std::vector<int64_t>& ids) {
      for (const int64_t id : ids) fuzz::check(id >= 0 && id < greeting.vocab_size, "ids are of the vocabulary");
    };
    for (const auto& ids : pipe.ids_of(TokenizerPipe::Kind::document, {"ab", "", "c"})) check_ids(ids);
    for (const TokensAndLabels& tokens : pipe.learn({"{}"})) {
      check_ids(tokens.ids);
      fuzz::check(tokens.labels.size() == tokens.ids.size(), "every id has a label");
    }
    pipe.decode({1, 2});
  } catch (const std::runtime_error& error) {
    fuzz::check_error(error.what(), "");
  }
  ::close(asked[1]);
  return 0;
}
