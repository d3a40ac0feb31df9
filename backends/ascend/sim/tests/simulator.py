"""What the tests of torch_npu on the simulated CANN share."""

import ctypes

import torch


class Simulator:
    """The simulator's own functions, which no vendor has: counting calls and injecting failures."""

    def __init__(self):
        self._runtime = ctypes.CDLL("libascendcl.so")
        self._operators = ctypes.CDLL("libopapi.so")
        self._runtime.concord_sim_label.restype = ctypes.c_char_p
        self._runtime.concord_sim_calls_of.restype = ctypes.c_int64
        self._operators.concord_sim_operators.restype = ctypes.c_char_p
        assert self._runtime.concord_sim_label() == b"sim-npu"

    def operators(self):
        """Returns the names of the implemented operators, without aclnn."""
        return [name.removeprefix("aclnn") for name in self._operators.concord_sim_operators().decode().split()]

    def set_faults(self, rules):
        """Replaces the injected failures and restarts counting calls."""
        assert self._runtime.concord_sim_set_faults(rules.encode()) == 0, rules

    def count(self):
        """Restarts counting calls."""
        self.set_faults("nothing@1=1")

    def calls(self, operator, prefix="aclnn"):
        return self._runtime.concord_sim_calls_of((prefix + operator).encode())


# aclDataType
DTYPES = {torch.float32: 0, torch.float16: 1, torch.int32: 3, torch.int64: 9, torch.float64: 11, torch.bool: 12,
          torch.bfloat16: 27}


class Direct:
    """Calls operators without torch_npu's kernels, by the C functions, on tensors of the device. Arguments: tensors, lists
    of tensors, lists of whole numbers, floats (scalars), ctypes values as they are, bool, int, None."""

    def __init__(self):
        self._library = ctypes.CDLL("libopapi.so")

    def _create(self, kind, *arguments):
        function = self._library["aclCreate" + kind]
        function.restype = ctypes.c_void_p
        return kind, function(*arguments)

    def _tensor(self, tensor):
        sizes = (ctypes.c_int64 * tensor.dim())(*tensor.shape)
        strides = (ctypes.c_int64 * tensor.dim())(*tensor.stride())
        return self._create("Tensor", sizes, ctypes.c_uint64(tensor.dim()), DTYPES[tensor.dtype], strides,
                            ctypes.c_int64(tensor.storage_offset()), 2, sizes, ctypes.c_uint64(tensor.dim()),
                            ctypes.c_void_p(tensor.untyped_storage().data_ptr()))

    def _object(self, value):
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, float):
            return self._create("Scalar", ctypes.byref(ctypes.c_double(value)), DTYPES[torch.float64])
        if isinstance(value, list) and isinstance(value[0], int):
            return self._create("IntArray", (ctypes.c_int64 * len(value))(*value), ctypes.c_uint64(len(value)))
        if isinstance(value, list):
            elements = [self._object(element) for element in value]
            array = (ctypes.c_void_p * len(value))(*(pointer for _, pointer in elements))
            return self._create(elements[0][0] + "List", array, ctypes.c_uint64(len(value)))
        return None

    def call(self, operator, *arguments):
        """Queues the operator on the current stream and destroys its arguments immediately, as torch_npu does."""
        torch.npu.current_stream().synchronize()  # whatever torch_npu still has in its own queue
        objects, given = [], []
        for argument in arguments:
            created = self._object(argument)
            if created is not None:
                objects.append(created)
                argument = ctypes.c_void_p(created[1])
            elif isinstance(argument, int) and not isinstance(argument, bool):
                argument = ctypes.c_int64(argument)
            given.append(argument)
        size, executor = ctypes.c_uint64(), ctypes.c_void_p()
        prepare = self._library[f"aclnn{operator}GetWorkspaceSize"]
        code = prepare(*given, ctypes.byref(size), ctypes.byref(executor))
        if code == 0:
            stream = ctypes.c_void_p(torch.npu.current_stream().npu_stream)
            code = self._library[f"aclnn{operator}"](None, size, executor, stream)
        for kind, pointer in objects:
            assert self._library["aclDestroy" + kind](ctypes.c_void_p(pointer)) == 0
        return code


def to(device, value):
    """|value| with every tensor in it on |device|, as a copy."""
    if isinstance(value, torch.Tensor):
        copy = value.detach().clone().to(device)
        return copy.requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(to(device, element) for element in value)
    return value


def check_equal(name, got, expected, rtol=0.0, atol=0.0):
    """Compares by value; without tolerances bitwise, except the sign of NaN."""
    if isinstance(expected, (list, tuple)):
        assert len(got) == len(expected), f"{name}: {len(got)} results instead of {len(expected)}"
        for index, (a, b) in enumerate(zip(got, expected)):
            check_equal(f"{name}[{index}]", a, b, rtol, atol)
        return
    if not isinstance(expected, torch.Tensor):
        assert got == expected, f"{name}: {got} instead of {expected}"
        return
    torch.testing.assert_close(got.cpu(), expected, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{name}: {m}")
