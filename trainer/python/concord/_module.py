"""A torch.nn.Module as the model of a run: `concord.train(model=module)`."""

import collections.abc
import inspect
import json
import re

import torch

from concord._library import ConfigError

EXAMPLE = "def stages(self): return [self.embedding, *self.layers, self.head]"
UNLIMITED = 1 << 40


class Network:
    """The parts of a module that run in turn, its parameters, and what the trainer has to know of them.

    The module may have
      stages       its parts in order, or a method that returns them: each gets what the one before it returns, the first one
                   token ids [batch, tokens]; the last one returns logits. Without it the module itself is the only part
      vocab_size   or config.vocab_size
      max_position_embeddings, or that of config: the longest row
      split_parameters   {regular expression: dimension} of the parameters of which a rank holds a part along a dimension,
                   searched in their names; those of concord.parallel's layers are known. All others are replicated
    """

    def __init__(self, module, folder):
        self.module, self.folder, self.name = module, folder, type(module).__name__
        self.parts = self.stages()
        self.training = None
        self.layer_of = self.assign()

    def stages(self):
        given = getattr(self.module, "stages", None)
        if given is None:
            return [self.module]
        if isinstance(given, collections.abc.Callable) and not isinstance(given, torch.nn.Module):
            given = given()
        parts = list(given) if isinstance(given, collections.abc.Iterable) else []
        if not parts or not all(callable(part) for part in parts):
            raise ConfigError(f"stages of {self.name} is {given!r}; must be its parts in the order in which they run, such as\n  "
                              f"{EXAMPLE}")
        return parts

    def assign(self):
        """Returns the number of the part that each parameter belongs to, by name."""
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        layer_of = {}
        for layer, part in enumerate(self.parts):
            for parameter in part.parameters() if isinstance(part, torch.nn.Module) else ():
                name = names.get(id(parameter))
                if name is None:
                    raise ConfigError(f"a part in stages of {self.name} has a parameter that is not one of {self.name}")
                if layer_of.setdefault(name, layer) != layer:
                    raise ConfigError(f"parameter {name} of {self.name} is in parts {layer_of[name]} and {layer} of its stages; "
                                      "tie weights within one part only")
        missing = next((name for name in names.values() if name not in layer_of), None)
        if missing:
            raise ConfigError(f"parameter {missing} of {self.name} is in none of its stages; they must contain every parameter")
        if not layer_of:
            raise ConfigError(f"{self.name} has no parameters, so there is nothing to train")
        return layer_of

    def describe(self, tp, stages, has_length, packing):
        """Writes the config.json of the module for `tp` ranks, and returns its path."""
        if stages > len(self.parts):
            raise ConfigError(f"a pipeline of {stages} stages, but {self.name} has {len(self.parts)} part"
                              f"{'s' if len(self.parts) > 1 else ''} that run{'' if len(self.parts) > 1 else 's'} in turn; give "
                              f"it more stages, such as\n  {EXAMPLE}")
        if packing and "cu_seqlens" not in self.arguments_of(self.parts[0]):
            raise ConfigError(f"sequence_packing: forward of {self.name} has no argument cu_seqlens, the boundaries of the "
                              "sequences in a row; add it, or remove sequence_packing")
        longest = self.value("max_position_embeddings")
        if longest is None and not has_length:
            raise ConfigError(f"{self.name} has no max_position_embeddings; give seq_length, the longest row")
        vocabulary = self.value("vocab_size")
        if not isinstance(vocabulary, int):
            raise ConfigError(f"{self.name} has no vocab_size; set the attribute to the number of token ids")
        parameters = {}
        for name, parameter in self.module.named_parameters():
            if not parameter.is_floating_point() or parameter.dim() == 0:
                raise ConfigError(f"parameter {name} of {self.name} is {parameter.dtype} with {parameter.dim()} dimensions; must "
                                  "have floating-point numbers and at least one dimension")
            parameters[name] = self.describe_parameter(name, parameter, tp)
        config = {"model_type": "concord_module", "architectures": [self.name], "vocab_size": vocabulary,
                  "max_position_embeddings": longest or UNLIMITED, "num_hidden_layers": len(self.parts),
                  "parameters": parameters}
        path = self.folder / "config.json"
        path.write_text(json.dumps(config))
        return str(path)

    def describe_parameter(self, name, parameter, tp):
        described = {"shape": list(parameter.shape), "layer": self.layer_of[name]}
        split = self.split_of(name, parameter)
        if split is not None:
            described["split"] = split
            described["shape"][split] *= tp
        if getattr(parameter, "sequence_parallel", False):
            described["partial_over_tp"] = True
        if not parameter.requires_grad:
            described["frozen"] = True
        return described

    def split_of(self, name, parameter):
        """Returns the dimension of which a rank holds a part; None if it holds all of the parameter."""
        if getattr(parameter, "tensor_model_parallel", False):
            return parameter.partition_dim
        patterns = getattr(self.module, "split_parameters", {})
        dims = {dim for pattern, dim in patterns.items() if re.search(pattern, name)}
        if len(dims) > 1:
            raise ConfigError(f"split_parameters of {self.name} splits {name} along dimensions {sorted(dims)}; must be one")
        return dims.pop() if dims else None

    def value(self, name):
        found = getattr(self.module, name, None)
        return getattr(getattr(self.module, "config", None), name, None) if found is None else found

    def arguments_of(self, part):
        return inspect.signature(part.forward if isinstance(part, torch.nn.Module) else part).parameters

    def prepare(self, first, count, device, dtype):
        """Moves parts to the device, and returns their parameters by name: the module trains in place."""
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        values = {}
        for part in self.parts[first:first + count]:
            if not isinstance(part, torch.nn.Module):
                continue
            part.to(device=device, dtype=dtype)
            for parameter in part.parameters():
                parameter.data = parameter.data.contiguous()
                values[names[id(parameter)]] = parameter
        return values

    def run(self, first, count, x, more, training):
        """Runs parts; those that have an argument of `more` get it. `training` is their mode."""
        if training != self.training:
            self.module.train(training)
            self.training = training
        for part in self.parts[first:first + count]:
            known = self.arguments_of(part) if more else ()
            x = part(x, **{name: value for name, value in more.items() if name in known})
            x = getattr(x, "logits", x)  # of transformers' models
        if not isinstance(x, torch.Tensor):
            raise ConfigError(f"a part of {self.name} returned {type(x).__name__}; must return a tensor")
        return x
