"""A NaN among the results makes each comparison of the checks fail: nan_test.py PROGRAM (not used). Exit code 77: a package is missing."""

import contextlib
import io
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from largest import largest
from random_models import check_differences, torch  # exits with 77 if missing
import dropout
import lora_in_peft
import muon_and_averages
import preferences
import train_experts

NAN = float("nan")


def fails(function, *arguments):
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            function(*arguments)
        except AssertionError:
            return True
    return False


def both(compare, found, wanted):
    """Passes for equal numbers, and fails with NaN as the last of the numbers."""
    assert not fails(compare, wanted), f"{compare} fails with equal numbers"
    assert fails(compare, found), f"{compare} does not see a NaN"


def main():
    assert largest(1.0, NAN) != largest(1.0, NAN) and largest(NAN, 1.0) != largest(NAN, 1.0) and largest(1.0, 3.0, 2.0) == 3.0
    one, bad = {"a": torch.ones(2), "b": torch.ones(2)}, {"a": torch.ones(2), "b": torch.tensor([1.0, NAN])}
    steps = [(2.0, 1.0), (1.0, 1.0)]
    for module in (dropout, train_experts):
        both(lambda weights: module.compare("test", steps, weights, steps, one), bad, one)
        both(lambda found: module.compare("test", found, one, steps, one), [steps[0], (NAN, 1.0)], steps)
        both(lambda found: module.compare("test", found, one, steps, one), [steps[0], (1.0, NAN)], steps)
    both(lambda found: lora_in_peft.compare_losses("test", found, [2.0, 1.0]), [2.0, NAN], [2.0, 1.0])
    logged = lambda value: [{"loss": 1.0, "rewards/margins": 1.0, "rewards/chosen": 1.0, "rewards/rejected": 0.0, "gradients": value}]
    both(lambda found: preferences.compare("test", logged(found), logged(one)), bad, one)
    both(lambda found: check_differences({"grad.a": one["a"], "grad.b": one["b"]},
                                         {"grad.a": found["a"], "grad.b": found["b"]}, 1e-6, "test"), bad, one)

    def share(found):
        assert muon_and_averages.largest_share(found, one) <= 1e-6
    both(share, bad, one)
    print("every comparison fails with NaN")


if __name__ == "__main__":
    main()
