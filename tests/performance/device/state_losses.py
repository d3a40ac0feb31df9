"""What narrow types of the optimizer's state change of the loss of a training run, compared with fp32, over several seeds.

state_losses.py PROGRAM [--seeds 3] [--steps 1000] [--batch 16] [--length 512] [--shape 25m] [--way "8-bit moments"] ...
                [--learning_rate 6e-4] [--parallel 4] [--json FILE]

As fp8_losses.py, which says how runs are compared and what is printed. The first way has fp32 state; the same run again,
and with its batches in four micro-batches, which rounds other sums, are the yardstick. Main weights with remainders are
exact, so that they differ by ties of weights only. Gradients in bf16 are added over four micro-batches. adam_beta2 is
0.95, since a bf16 second moment would not decay with 0.999.
"""

import sys

import fp8_losses

MOMENTS = ("--exp_avg_dtype", "--exp_avg_sq_dtype")


def way(*more, parts=1):
    return lambda batch: [fp8_losses.BATCH, batch // parts, "--gradient_accumulation_steps", parts, "--adam_beta2", 0.95, *more]


def moments(dtype):
    return [word for name in MOMENTS for word in (name, dtype)]


REMAINDER = ["--main_params_dtype", "remainder"]
BF16_GRADS = ["--main_grads_dtype", "bf16"]
WAYS = {
    "fp32": way(),
    "fp32 again": way(),
    "fp32, four parts": way(parts=4),
    "bf16 moments": way(*moments("bf16")),
    "8-bit moments": way(*moments("8bit")),
    "remainders": way(*REMAINDER),
    "bf16 gradients": way(*BF16_GRADS, parts=4),
    "all of the last": way(*moments("8bit"), *REMAINDER, *BF16_GRADS, parts=4),
}

if __name__ == "__main__":
    sys.exit(fp8_losses.main(__doc__, WAYS, seeds=3, steps=1000, shape="25m"))
