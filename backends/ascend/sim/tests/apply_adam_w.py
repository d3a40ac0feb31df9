#!/usr/bin/env python3
"""torch_npu.npu_apply_adam_w against libtorch's AdamW. On Ascend950 torch_npu calls the aclnn operator, on Ascend910 the
graph engine's by name; CONCORD_SIM_NPU_SOC chooses."""

import torch
import torch_npu

from simulator import Simulator


def main():
    simulator = Simulator()
    simulator.count()
    torch.manual_seed(5)
    weight, gradients = torch.randn(3, 4), torch.randn(3, 3, 4)
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.1, foreach=False)
    on_device = weight.npu()
    m, v = torch.zeros_like(on_device), torch.zeros_like(on_device)
    for step, gradient in enumerate(gradients):
        torch_npu.npu_apply_adam_w(0.9**step, 0.999**step, 0.1, 0.1, 0.9, 0.999, 1e-8, gradient.npu(), None, False,
                                   False, out=(on_device, m, v))
        parameter.grad = gradient
        optimizer.step()
    # The betas and their powers travel as float32: 1 - 0.999^t loses up to 2^-24 / 0.001 of itself.
    torch.testing.assert_close(on_device.cpu(), parameter.detach(), rtol=1e-4, atol=1e-5)
    way = "aclnn" if torch.npu.get_device_name().startswith("Ascend950") else ""
    assert simulator.calls("ApplyAdamW", way) == 3, "the operator was not called"
    print("apply_adam_w.py: as on the cpu")


if __name__ == "__main__":
    main()
