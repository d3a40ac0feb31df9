#!/usr/bin/env python3
"""Shows check_layers.py failing on each kind of include against the arrows, and passing along them."""

import contextlib
import io
import os
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_layers

# A small tree along the arrows, which every test starts from.
CLEAN = {
    "platform/abi/types.h": "#include <stdint.h>\n",
    "platform/abi/comm.h": '#include "types.h"\n',
    "platform/base/unique_fd.hpp": "#include <unistd.h>\n",
    "platform/sdk/plugin.hpp": '#include "platform/abi/comm.h"\n#include "platform/base/unique_fd.hpp"\n',
    "platform/cpp/platform.hpp": '#include "platform/abi/comm.h"\n#include "platform/loader/registry.h"\n',
    "platform/loader/registry.h": '#include "platform/abi/comm.h"\n',
    "platform/loader/registry.cpp": "#include <fmt/format.h>\n",
    "platform/layers/validate.cpp": '#include "platform/sdk/plugin.hpp"\n',
    "platform/conformance/context.h": '#include "platform/loader/registry.h"\n#include "platform/sdk/plugin.hpp"\n',
    "platform/conformance/cases/comm.cpp": '#include "platform/conformance/context.h"\n',
    "platform/conformance/json_test.cpp": '#include "tests/processes/spawn.h"\n#include <gtest/gtest.h>\n',
    "backends/shm/engine.h": '#include "platform/abi/types.h"\n#include "platform/base/unique_fd.hpp"\n',
    "backends/cpu/comm.cpp": '#include "backends/shm/engine.h"\n#include "platform/sdk/plugin.hpp"\n',
    "backends/cuda/stream.cpp": "#include <cuda_runtime.h>\n#include <nccl.h>\n",
    "backends/ascend/stream.cpp": '#include "acl/acl.h"\n',
    "backends/ascend/sim/opapi/matmul.cpp": "#include <ATen/ops/mm.h>\n",
    "backends/cpu/queue.h": "",
    "backends/ascend/sim/runtime/queue.h": '#include "backends/cpu/queue.h"\n',
    "backends/ascend/torch/ops/attention.cpp": "#include <torch/library.h>\n",
    "backends/cuda/torch/ops/attention/attention.cpp": "#include <torch/library.h>\n",
    "backends/cpu/comm_test.cpp": '#include "tests/processes/spawn.h"\n#include "platform/cpp/platform.hpp"\n',
    "backends/cpu/testing/ranks.h": '#include "tests/processes/spawn.h"\n',
    "platform/sdk/testing/test_host.hpp": '#include "platform/cpp/platform.hpp"\n',
    "core/torch/device.cpp": '#include <c10/core/Device.h>\n#include "platform/cpp/platform.hpp"\n',
    "core/base/quoted.h": "#include <string>\n",
    "core/ops/cpu/rope.h": '#include "core/base/quoted.h"\n',
    "core/parallel/linear.h": '#include "core/ops/cpu/rope.h"\n#include "core/torch/device.h"\n',
    "core/schedule/schedule.h": '#include "core/base/quoted.h"\n',
    "core/pipeline/executor.h": '#include "core/schedule/schedule.h"\n#include <ATen/core/Tensor.h>\n',
    "trainer/trainer.h": '#include "core/pipeline/executor.h"\n#include "core/torch/device.h"\n',
    "trainer/cli/main.cpp": '#include "trainer/trainer.h"\n#include "platform/cpp/platform.hpp"\n',
    "trainer/torch_module/entry.cpp": "#include <ATen/core/Tensor.h>\n",
    "core/torch/device.h": '#include "platform/base/unique_fd.hpp"\n',
    "tests/processes/spawn.h": '#include "backends/shm/engine.h"\n',
}


class CheckLayers(unittest.TestCase):
    def run_on(self, files=()):
        """Runs the check on CLEAN with some files added or replaced; returns the exit code and the output."""
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**CLEAN, **dict(files)}.items():
                os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                code = check_layers.main([root])
            return code, printed.getvalue()

    def expect_refused(self, path, header, words):
        code, printed = self.run_on(files={path: f"\n#include {header}\n"})
        self.assertEqual(code, 1, printed)
        self.assertIn(f"error: {path}:2: includes {header[1:-1]}: ", printed)
        self.assertIn(words, printed)

    def test_a_tree_along_the_arrows_passes(self):
        code, printed = self.run_on()
        self.assertEqual(code, 0, printed)
        self.assertIn(f"{len(CLEAN)} files, 0 errors", printed)

    def test_a_folder_without_sources_fails(self):
        with tempfile.TemporaryDirectory() as root, contextlib.redirect_stderr(io.StringIO()) as printed:
            self.assertEqual(check_layers.main([root]), 2)
        self.assertIn("nothing was checked", printed.getvalue())

    def test_what_is_built_without_libtorch_may_not_include_it(self):
        for part in check_layers.WITHOUT_LIBTORCH:
            self.assertIn(part, check_layers.ARROWS)
            self.expect_refused(f"{part}/x.cpp", "<ATen/core/Tensor.h>", f"{part} is built without libtorch")

    def test_platform_may_not_include_backends(self):
        self.expect_refused("platform/loader/x.cpp", '"backends/shm/engine.h"', "platform/loader may include")
        self.expect_refused("platform/sdk/x.hpp", '"backends/shm/engine.h"', "platform/sdk may include platform/abi")

    def test_abi_may_include_nothing_else_of_the_tree(self):
        self.expect_refused("platform/abi/x.h", '"platform/sdk/plugin.hpp"', "nothing else of the tree")

    def test_base_may_include_nothing_else_of_the_tree(self):
        self.expect_refused("platform/base/x.hpp", '"platform/abi/comm.h"', "nothing else of the tree")
        self.expect_refused("platform/abi/x.h", '"platform/base/unique_fd.hpp"', "nothing else of the tree")

    def test_abi_may_include_no_other_standard_header(self):
        self.expect_refused("platform/abi/x.h", "<string>", "stddef.h and stdint.h")

    def test_sdk_may_not_include_the_host_side(self):
        self.expect_refused("platform/sdk/x.hpp", '"platform/cpp/platform.hpp"', "platform/sdk may include")

    def test_the_conformance_kit_needs_the_platform_only(self):
        self.expect_refused("platform/conformance/cases/x.cpp", '"core/base/quoted.h"', "platform/conformance may include")
        self.expect_refused("platform/conformance/x.cpp", '"tests/processes/spawn.h"', "only tests may include tests")
        self.expect_refused("trainer/cli/x.cpp", '"platform/conformance/context.h"', "trainer/cli may include")

    def test_backends_may_not_include_the_host_side(self):
        self.expect_refused("backends/cpu/x.cpp", '"platform/cpp/platform.hpp"', "backends/cpu may include")

    def test_backends_may_not_include_each_other(self):
        include = '#include "../cpu/device.h"\n'
        code, printed = self.run_on(files={"backends/cpu/device.h": "", "backends/cuda/x.cpp": include})
        self.assertEqual(code, 1, printed)
        self.assertIn("backends/cuda may include platform/abi, platform/sdk, backends/shm", printed)
        self.expect_refused("backends/ascend/x.cpp", '"backends/cpu/queue.h"', "backends/ascend may include")

    def test_core_may_not_include_backends_trainer_or_sdk(self):
        self.expect_refused("core/base/x.cpp", '"backends/shm/engine.h"', "core/base may include")
        self.expect_refused("core/base/x.cpp", '"platform/sdk/plugin.hpp"', "core/base may include")
        self.expect_refused("core/base/x.h", '"trainer/trainer.h"', "core/base may include")
        self.expect_refused("core/mesh/x.h", '"trainer/trainer.h"', "core/mesh may include")

    def test_folders_of_core_keep_to_their_arrows(self):
        self.expect_refused("core/base/x.cpp", '"core/schedule/schedule.h"', "core/base may include platform/base")
        self.expect_refused("core/schedule/x.cpp", '"core/pipeline/executor.h"', "core/schedule may include core")
        self.expect_refused("core/schedule/x.cpp", '"platform/loader/registry.h"', "core/schedule may include core")
        self.expect_refused("core/models/x.cpp", '"core/pipeline/executor.h"', "core/models may include")
        self.expect_refused("core/ops/cpu/x.cpp", '"core/parallel/linear.h"', "core/ops may include")

    def test_folders_of_trainer_keep_to_their_arrows(self):
        self.expect_refused("trainer/data/x.cpp", '"trainer/trainer.h"', "trainer/data may include")
        self.expect_refused("trainer/arguments/x.cpp", '"trainer/trainer.h"', "trainer/arguments may include")
        self.expect_refused("trainer/report/x.cpp", '"core/ops/cpu/rope.h"', "trainer/report may include core")
        self.expect_refused("trainer/cli/x.cpp", '"core/pipeline/executor.h"', "trainer/cli may include")

    def test_a_table_with_a_cycle_fails(self):
        self.assertIsNone(check_layers.cycle_in(check_layers.ARROWS))
        self.assertEqual(check_layers.cycle_in({"a": ["b"], "b": ["c", "d"], "c": [], "d": ["b"]}), ["b", "d", "b"])
        self.assertEqual(check_layers.cycle_in({"a": ["a"]}), ["a", "a"])
        with unittest.mock.patch.dict(check_layers.ARROWS, {"core/schedule": ["core", "core/pipeline"]}):
            code, printed = self.run_on()
        self.assertEqual(code, 2, printed)
        self.assertIn("the table has a cycle: core/schedule -> core/pipeline -> ", printed)

    def test_nothing_includes_tests(self):
        self.expect_refused("trainer/x.cpp", '"tests/processes/spawn.h"', "only tests may include tests")
        self.expect_refused("backends/cpu/x.cpp", '"platform/sdk/testing/test_host.hpp"', "only tests may include tests")
        self.expect_refused("backends/cpu/x.cpp", '"testing/ranks.h"', "only tests may include tests")

    def test_cuda_headers_stay_in_their_backend(self):
        for header in ("<cuda_runtime.h>", "<cuda.h>", "<nccl.h>", '"cudnn.h"'):
            self.expect_refused("core/base/x.cpp", header, "inside backends/cuda")
            self.expect_refused("backends/ascend/x.cpp", header, "inside backends/cuda")

    def test_ascend_headers_stay_in_their_backend(self):
        for header in ("<acl/acl.h>", '"hccl/hccl.h"', "<aclnn/aclnn_base.h>"):
            self.expect_refused("platform/loader/x.cpp", header, "inside backends/ascend")
            self.expect_refused("backends/cuda/x.cpp", header, "inside backends/ascend")

    def test_libtorch_stays_in_core_and_trainer(self):
        for header in ("<torch/torch.h>", "<ATen/ATen.h>", "<c10/core/Device.h>"):
            self.expect_refused("platform/cpp/x.hpp", header, "libtorch is for core and trainer")
            self.expect_refused("backends/cpu/x.cpp", header, "libtorch is for core and trainer")
            self.expect_refused("backends/ascend/sim/runtime/x.cpp", header, "libtorch is for core and trainer")
            self.expect_refused("backends/ascend/torch/x.cpp", header, "libtorch is for core and trainer")

    def test_public_headers_need_no_library(self):
        self.expect_refused("platform/cpp/x.hpp", "<fmt/format.h>", "code that includes it")
        self.expect_refused("platform/sdk/x.hpp", "<nlohmann/json.hpp>", "code that includes it")

    def test_a_part_without_a_layer_fails(self):
        self.expect_refused("platform/extra/x.cpp", '"platform/abi/comm.h"', "is not in any layer")
        self.expect_refused("core/extra/x.cpp", '"core/base/quoted.h"', "core/extra is not in any layer")

    def expect_limit(self, path, most):
        code, printed = self.run_on(files={path: "\n" * most})
        self.assertEqual(code, 0, printed)
        code, printed = self.run_on(files={path: "\n" * (most + 1)})
        self.assertEqual(code, 1, printed)
        self.assertIn(f"error: {path}: has {most + 1} lines, and may have {most}; ", printed)

    def test_headers_have_at_most_200_lines_and_sources_500(self):
        for path in ("core/base/x.h", "platform/sdk/x.hpp", "backends/cuda/x.cuh"):
            self.expect_limit(path, 200)
        for path in ("core/base/x.cpp", "backends/cuda/x.cu"):
            self.expect_limit(path, 500)

    def test_tests_may_be_longer(self):
        for path in ("core/base/x_test.cpp", "backends/cpu/testing/x.h", "tests/abi/x.h"):
            code, printed = self.run_on(files={path: "\n" * 600})
            self.assertEqual(code, 0, printed)

    def test_folders_have_at_most_40_files_at_one_level(self):
        for folder in ("core/base/files", "docs", "tests/parity", "toolchains"):
            files = {f"{folder}/{name}.txt": "" for name in range(40)}
            code, printed = self.run_on(files={**files, f"{folder}/.hidden": "", f"{folder}/more/x.txt": ""})
            self.assertEqual(code, 0, printed)
            code, printed = self.run_on(files={**files, f"{folder}/one_more.txt": ""})
            self.assertEqual(code, 1, printed)
            self.assertIn(f"error: {folder}: has 41 files at one level, and may have 40; ", printed)

    def test_data_may_be_many_files(self):
        code, printed = self.run_on(files={f"tests/golden/hf/{name}.json": "" for name in range(60)})
        self.assertEqual(code, 0, printed)

    def test_an_include_in_a_comment_is_not_one(self):
        text = '/* for example\n#include "backends/shm/engine.h"\n*/\n// #include <cuda.h>\n'
        code, printed = self.run_on(files={"core/base/x.cpp": text})
        self.assertEqual(code, 0, printed)


if __name__ == "__main__":
    unittest.main()
