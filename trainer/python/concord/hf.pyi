from collections.abc import Mapping
from typing import Any, Literal

import transformers
import trl

_Implementation = Literal["auto", "concord", "torch"]

class ConcordTrainer(transformers.Trainer):
    """transformers.Trainer, trained by Concord."""

    def __init__(self, *args: Any, settings: Mapping[str, Any] | None = None, implementation: _Implementation = "auto",
                 **more: Any) -> None: ...

class SFTTrainer(trl.SFTTrainer):
    """trl.SFTTrainer, trained by Concord."""

    def __init__(self, *args: Any, settings: Mapping[str, Any] | None = None, implementation: _Implementation = "auto",
                 **more: Any) -> None: ...
