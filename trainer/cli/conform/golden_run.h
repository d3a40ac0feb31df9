// The first golden trajectory: 20 steps of a tiny Qwen2 in fp32, next to PyTorch's (tests/golden/README.md, train).
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace concord {

class GoldenRun {
 public:
  // Returns nullopt if the files are in none of the places: the installation's, and the checkout of this build.
  static std::optional<GoldenRun> find(const std::filesystem::path& program);
  static std::string places(const std::filesystem::path& program);

  // Writes data and configuration to |folder|, which is created. Returns the configuration's path. The run writes to
  // |folder|/out, and a timeline of its steps 6 to 15. Throws std::runtime_error for a full disk.
  std::string write_input(const std::string& folder) const;

  // Returns {"steps": [{"step", "loss", "expected_loss", "grad_norm", "expected_grad_norm"}], "loss_bound",
  // "largest_loss_difference", "grad_norm_bound", "largest_grad_norm_difference", "verdict": "pass" or "fail"} of a
  // finished run.
  nlohmann::ordered_json compare(const std::string& folder) const;

 private:
  explicit GoldenRun(std::filesystem::path folder) : folder_(std::move(folder)) {}

  std::filesystem::path folder_;  // like tests/golden
};

}  // namespace concord
