"""concord.initialize, concord.parallel and concord.current_platform: parallel_test.py PROGRAM. PYTHONPATH has the package.

With CONCORD_PLATFORM=ascend or cuda on two devices, which the machine must have or simulate.
"""

import os
import pathlib
import subprocess
import sys
import threading
import unittest

import parallel_ranks
from runs import PROGRAM, RunTest

import concord
import torch

RANKS = pathlib.Path(__file__).parent / "parallel_ranks.py"
TWO = "tensor_model_parallel_size=2"
DEVICE = os.environ.get("CONCORD_PLATFORM", "cpu") != "cpu"


@unittest.skipIf(DEVICE, "of the host")
class RanksTest(unittest.TestCase):
    def expect_pass(self, *words, command=(PROGRAM, "launch", "--nproc", "2", "--", sys.executable, "-B")):
        done = subprocess.run([*command, str(RANKS), *words], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_two_tensor_parallel_ranks(self):
        self.expect_pass(*parallel_ranks.CHECKS, TWO)

    def test_two_data_parallel_ranks_started_by_torchrun(self):
        self.expect_pass("layers", command=[sys.executable, "-B", "-m", "torch.distributed.run", "--standalone",
                                            "--nproc_per_node", "2"])

    def test_a_function_as_four_ranks(self):
        done = concord.launch(parallel_ranks.run, [["layers", "collectives"], {"tensor_model_parallel_size": 2}], nproc=4)
        self.assertEqual(done, 0)

    def test_a_lost_rank_ends_the_others(self):
        script = "import concord, os, sys\njob = concord.initialize(tensor_model_parallel_size=2)\n" \
                 "if job.rank: sys.exit('rank 1 has had enough')\njob.group('tp').barrier()\n"
        done = subprocess.run([PROGRAM, "launch", "--nproc", "2", "--", sys.executable, "-c", script], capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("rank 1 has had enough", done.stderr)


@unittest.skipUnless(DEVICE, "needs a platform with devices: CONCORD_PLATFORM=ascend")
class DeviceTest(unittest.TestCase):
    def test_layers_on_two_devices(self):
        script = [PROGRAM, "launch", "--nproc", "2", "--", sys.executable, "-B", str(RANKS)]
        done = subprocess.run([*script, "layers", "collectives", "float32", TWO], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_devices_memory_and_streams(self):
        platform = concord.current_platform
        self.assertIn((platform.device_type, platform.dispatch_key), (("cuda", "CUDA"), ("npu", "PrivateUse1")))
        device = platform.torch_device()
        before, ours = platform.memory_allocated(), torch.ones(1 << 20).to(device)
        self.assertGreaterEqual(platform.memory_allocated() - before, 4 << 20)
        stream = platform.Stream()
        with platform.stream(stream):
            self.assertEqual(platform.current_stream().native_handle, stream.native_handle)
            doubled = ours * 2
        self.assertNotEqual(platform.current_stream().native_handle, stream.native_handle)
        stream.synchronize()
        self.assertTrue((doubled.cpu() == 2).all())
        free, total = platform.mem_get_info()
        self.assertLessEqual(free, total - (8 << 20))
        del ours, doubled
        self.assertEqual(platform.memory_allocated(), before)
        self.assertGreaterEqual(platform.max_memory_allocated(), 8 << 20)
        self.assertLessEqual(platform.memory_allocated(), platform.memory_reserved())
        platform.empty_cache()
        platform.reset_peak_memory_stats()
        self.assertEqual(platform.max_memory_allocated(), before)
        with self.assertRaisesRegex(concord.ConfigError, "all_reduce: the tensor is on cpu; must be on "):
            platform.Communicator(1, 0, concord.Communicator.unique_id()).all_reduce(torch.ones(2), stream=stream)


@unittest.skipIf(DEVICE, "of the host")
class OneRankTest(unittest.TestCase):
    def test_layers_of_one_rank(self):
        parallel_ranks.run(parallel_ranks.CHECKS, {"seed": 7})
        torch.set_default_dtype(torch.float32)

    def test_wrong_settings_have_the_words_of_the_program(self):
        for settings, message in (
                ({"tensor_model_paralel_size": 2}, "unknown argument .*did you mean tensor_model_parallel_size"),
                ({"tensor_model_parallel_size": "two"}, "tensor_model_parallel_size"),
                ({"tensor_model_parallel_size": 2}, "does not divide"),
                ({"learning_rate": 1e-3}, "initialize: learning_rate is not a setting of a job; must be one of: .*seed"),
                ({"seed": 0}, "seed"), ({"seed": object()}, "seed is <object object at .*must be a string, a number")):
            with self.subTest(settings), self.assertRaisesRegex(concord.ConfigError, message):
                concord.initialize(**settings)
        self.assertFalse(concord.is_initialized())

    def test_without_a_job_there_are_no_layers(self):
        with self.assertRaisesRegex(concord.Error, "call concord::initialize first"):
            concord.parallel.ColumnParallelLinear(4, 4)
        with concord.initialize() as job:
            group = job.group("tp")
            with self.assertRaisesRegex(concord.ConfigError, "there is no group 'tensor'; must be one of: world, tp, pp"):
                job.group("tensor")
            with self.assertRaisesRegex(concord.ConfigError, "op is 'mean'; must be one of: sum, prod, min, max, avg"):
                group.all_reduce(torch.ones(2), op="mean")
            with self.assertRaisesRegex(concord.ConfigError, "initialize was already called with seed 42 and now with 7"):
                concord.initialize(seed=7)
            self.assertEqual(repr(job), "<concord rank 0 of 1 on cpu>")
        with self.assertRaisesRegex(concord.Error, "call concord::initialize first"):
            group.all_reduce(torch.ones(2))


@unittest.skipIf(DEVICE, "of the host")
class PlatformTest(unittest.TestCase):
    platform = property(lambda self: concord.current_platform)

    def test_identity(self):
        platform = self.platform
        self.assertEqual((platform.name, platform.device_type, platform.dispatch_key), ("cpu", "cpu", "CPU"))
        self.assertEqual((platform.communication_backend, platform.device_control_env_var), ("gloo", ""))
        self.assertTrue(platform.is_cpu() and platform.is_available() and not platform.is_cuda() and not platform.is_npu())
        self.assertEqual(platform.capabilities()["stream.null"], 1)
        self.assertIn("<concord platform cpu ", repr(platform))

    def test_devices(self):
        platform = self.platform
        count = platform.device_count()
        platform.set_device(count - 1)
        self.assertEqual(platform.current_device(), count - 1)
        for each in (0, "cpu", torch.device("cpu"), "cpu:0"):
            platform.set_device(each)
            self.assertEqual(platform.torch_device(each), torch.device("cpu"))
        self.assertTrue(platform.get_device_name())
        platform.synchronize()
        for wrong, message in ((count, f"device {count} does not exist; platform cpu has {count}, numbered from 0"),
                               (-1, "device -1 does not exist"), ("cuda:0", "device cuda:0 is not of platform cpu")):
            with self.assertRaisesRegex(concord.ConfigError, message):
                platform.set_device(wrong)

    def test_streams_and_events_are_in_order(self):
        platform, gate, seen = self.platform, threading.Event(), []
        first, second, event = platform.Stream(), platform.Stream(), platform.Event(enable_timing=True)
        begin = platform.Event(enable_timing=True)
        begin.record(first)
        first.launch_host(gate.wait)
        first.launch_host(lambda: seen.append("first"))
        first.record_event(event)
        second.wait_event(event)
        second.launch_host(lambda: seen.append("second"))
        self.assertFalse(event.query() or first.query() or second.query())
        gate.set()
        second.synchronize()
        self.assertEqual(seen, ["first", "second"])
        self.assertTrue(event.query() and first.query())
        self.assertGreaterEqual(begin.elapsed_time(event), 0)
        with self.assertRaisesRegex(concord.ConfigError, "both events must be made with Event"):
            platform.Event().elapsed_time(event)
        third = platform.Stream()
        gate.clear()
        first.launch_host(gate.wait)
        third.wait_stream(first)
        self.assertFalse(third.query())
        with platform.stream(third):
            self.assertEqual(platform.current_stream().native_handle, third.native_handle)
            marked = third.record_event()
        self.assertEqual(platform.current_stream().native_handle, 0)
        gate.set()
        marked.synchronize()
        gate.clear()
        last = platform.Stream()
        last.launch_host(gate.wait)
        threading.Timer(0.01, gate.set).start()
        del last  # waits for its function without the interpreter's lock, which the timer needs

    def test_a_function_of_a_stream_that_fails_is_reported(self):
        reported, before = [], sys.unraisablehook
        sys.unraisablehook = lambda each: reported.append(each.exc_type)
        try:
            stream = self.platform.Stream()
            stream.launch_host(lambda: 1 // 0)
            stream.synchronize()
        finally:
            sys.unraisablehook = before
        self.assertEqual(reported, [ZeroDivisionError])
        with self.assertRaisesRegex(concord.ConfigError, "launch_host: 5 is not a function"):
            stream.launch_host(5)

    def test_memory(self):
        platform, size = self.platform, 64 << 20
        free, total = platform.mem_get_info()
        self.assertTrue(0 < free <= total)
        platform.empty_cache()
        before = platform.memory_allocated()
        kept = torch.ones(size // 4)
        self.assertGreater(platform.memory_allocated() - before, size * 0.9)
        self.assertGreaterEqual(platform.max_memory_allocated(), platform.memory_allocated())
        del kept
        platform.empty_cache()
        self.assertLess(platform.memory_allocated() - before, size * 0.5)
        self.assertGreater(platform.max_memory_reserved() - platform.memory_reserved(), size * 0.5)
        platform.reset_peak_memory_stats()
        self.assertLess(platform.max_memory_allocated() - platform.memory_allocated(), size * 0.5)

    def test_random_numbers(self):
        platform = self.platform
        platform.manual_seed(11)
        self.assertEqual(platform.initial_seed(), 11)
        state, ours = platform.get_rng_state(), torch.randn(5)
        torch.manual_seed(11)
        self.assertTrue(torch.equal(torch.randn(5), ours))
        platform.set_rng_state(state)
        self.assertTrue(torch.equal(torch.randn(5), ours))

    def test_communicators_of_one_rank_and_wrong_calls(self):
        Communicator = self.platform.Communicator
        comm, x = Communicator(1, 0, Communicator.unique_id()), torch.arange(5.0)
        comm.all_reduce(x)
        self.assertEqual(x.tolist(), [0, 1, 2, 3, 4])
        for call, message in (
                (lambda: Communicator(1, 0, b"short"), "unique_id has 5 bytes; must be the"),
                (lambda: Communicator(2, 2, Communicator.unique_id()), "rank 2 of 2: must be from 0 to 1"),
                (lambda: comm.all_reduce(torch.ones(2, 3).t()), "all_reduce: the tensor is not contiguous"),
                (lambda: comm.all_reduce(torch.ones(2, dtype=torch.complex64)), "all_reduce: a tensor of ComplexFloat"),
                (lambda: comm.all_gather(torch.ones(3), torch.ones(2)), "all_gather: tensors of 3 and 2 elements"),
                (lambda: comm.all_reduce(torch.ones(2, device="meta")), "the tensor is on meta; must be on cpu")):
            with self.assertRaisesRegex(concord.ConfigError, message):
                call()


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ["PYTHONPATH"], str(RANKS.parent)])
    unittest.main()
