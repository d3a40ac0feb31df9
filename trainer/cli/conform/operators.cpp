#include "trainer/cli/conform/operators.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "core/base/files/output_check.h"
#include "trainer/cli/setting_options.h"
#include "trainer/torch_module/loader.h"

namespace concord {
namespace {

constexpr const char* kOperatorsFooter =
    R"(Each kernel of each operator runs on the device at the sizes of real models, in fp32, bf16 and fp16, and is
compared by value with the reference on the host in fp64. A line shows the largest error as a share of what rounding
explains (docs/operators.md), which may be up to 100 %.
Exit codes: 0 all are equal within their bounds, 1 one is not or none was compared, 2 wrong usage.)";

}  // namespace

void add_operators_command(CLI::App* program, int* exit_code) {
  const auto given = std::make_shared<OperatorsArguments>();
  const auto is_quick = std::make_shared<bool>(false);
  CLI::App* app =
      program->add_subcommand("operators", "compare each operator on the device with the host, at real sizes");
  app->footer(kOperatorsFooter);
  app->add_option("--platform", given->platform, "cpu, cuda, ascend, or a path to a plugin");
  app->add_option("--filter", given->filter, "only operators whose name contains this text");
  app->add_option("--out", given->out, "also write the comparisons to this file, as JSON");
  app->add_flag("--overwrite", given->overwrite, "replace an existing file");
  app->add_flag("--quick", *is_quick, "only the smallest size of each operator");
  app->callback([given, is_quick, exit_code] {
    given->all_sizes = !*is_quick;
    check_output_file("--out", given->out, {.overwrite = given->overwrite});
    use_platform(given->platform);
    *exit_code = torch_module().compare_operators(*given);
  });
}

}  // namespace concord
