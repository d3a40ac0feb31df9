// `concord conform --report FILE.zip`: everything about a platform on this machine in one file to send.
//
//   summary.json         versions, machine, and each part with its command, exit code and verdict
//   platforms.json       plugins, devices and capabilities
//   doctor.json          this machine; doctor_NAME.json: the vendor's software, if the plugin has checks of it
//   conformance.json     every check of the kit with the fraction of its error bound that it used
//   operators.json       each operator on the device, compared with the host at real sizes
//   timeline/rank_0.json ten training steps, for Perfetto and chrome://tracing
//   trajectory.json      20 training steps next to PyTorch's (tests/golden/train/full_batch.json)
//   logs/PART.txt        what each part printed
#pragma once

#include <string>
#include <vector>

namespace concord {

struct PlatformReportOptions {
  std::string file;
  std::string platform;          // name or path; empty: the default one
  std::vector<std::string> kit;  // further arguments of the kit
  bool quick = false;            // in the kit's arguments too; operators then run at their smallest real size
  bool overwrite = false;
};

// Runs all parts and writes the archive, also if some have failed; prints a line per part. Returns the exit code: 1 if
// a part has failed. Throws ConfigError for a |file| that may not be written, std::runtime_error for a full disk.
int write_platform_report(const PlatformReportOptions& options);

}  // namespace concord
