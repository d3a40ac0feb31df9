// Inputs for fuzzers: random changes of a corpus, the same for the same seed and number on every machine.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace concord::fuzz {

class Mutator {
 public:
  // |corpus| must not be empty and must outlive this object.
  Mutator(const std::vector<std::string>& corpus, uint64_t seed) : corpus_(corpus), seed_(seed) {}

  // Returns input |number|: an entry of the corpus with a few changes. Does not depend on earlier calls.
  std::string input(uint64_t number);

 private:
  uint64_t below(uint64_t limit) { return limit == 0 ? 0 : random_() % limit; }
  void change(std::string& text);
  void change_number(std::string& text);
  void insert_token(std::string& text);
  void splice(std::string& text);
  void copy_part(std::string& text);

  const std::vector<std::string>& corpus_;
  uint64_t seed_;
  std::mt19937_64 random_;  // its numbers are fixed by the standard; those of distributions are not
};

}  // namespace concord::fuzz
