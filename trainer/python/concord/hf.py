"""transformers' Trainer and TRL's SFTTrainer, trained by Concord. See docs/transformers.md.

    from concord.hf import ConcordTrainer as Trainer       # in place of: from transformers import Trainer
    from concord.hf import SFTTrainer                      # in place of: from trl import SFTTrainer

The classes are subclasses of those of the packages: data, collators, adapters, saving, evaluate() and predict() are theirs,
and only train() is a run of Concord.
"""

import inspect
import itertools
import json
import pathlib
import tempfile

import torch

try:
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.trainer_utils import TrainOutput, has_length
except ImportError as error:
    raise ImportError(f"concord.hf needs transformers and accelerate: pip install transformers accelerate ({error})") from error

from concord._library import ConfigError, core
from concord._load import load
from concord._train import Callback, train, write_rows

# Settings of TrainingArguments whose meaning is not that of the table in trainer/arguments/foreign, for the page too.
MAPPED = {"train_sampling_strategy": "random is sample_order torch, sequential is shuffle false",
          "resume_from_checkpoint": "a script's own option; train(resume_from_checkpoint=...) takes Concord's checkpoints"}
# What a subclass or a script may change in transformers, but would have no effect on a run of Concord.
REPLACEABLE = ("compute_loss", "training_step", "create_optimizer", "create_scheduler", "create_optimizer_and_scheduler",
               "get_train_dataloader", "get_eval_dataloader", "prediction_step")
IMPLEMENTATIONS = ("auto", "concord", "torch")


def settings_of(args):
    """Returns the settings of a run from a TrainingArguments: those that Concord has, and what differs from its default.

    Fields of subclasses (TRL's) are used by their own trainers."""
    own = {name for name, *_ in core.settings()}
    given = args.to_dict()
    # Another TrainingArguments would reset the state of accelerate. These two are computed from other fields.
    default = {name: field.default for name, field in transformers.TrainingArguments.__dataclass_fields__.items()}
    default |= {"accelerator_config": transformers.trainer_pt_utils.AcceleratorConfig().to_dict()}
    default |= {} if given["fsdp"] else {"fsdp_config": given["fsdp_config"]}
    settings = {name: given[name] for name in default if given.get(name) is not None and name not in MAPPED
                and (name in own or (given[name] != default[name] and (given[name] or default[name])))}
    strategy = given["train_sampling_strategy"]
    if strategy not in ("random", "sequential"):
        raise ConfigError(f"train_sampling_strategy is {strategy!r}; must be random or sequential")
    return {**settings, "shuffle": strategy == "random", "sample_order": "torch"}


def row_of(batch):
    """Returns the row of a .jsonl for a batch with one sample, as a collator returns it."""
    tensors = {name: torch.as_tensor(batch[name]) for name in ("input_ids", "labels", "attention_mask", "position_ids")
               if batch.get(name) is not None}
    if "input_ids" not in tensors or "labels" not in tensors:
        raise ConfigError(f"the data collator made {', '.join(batch)} of a sample; must make input_ids and labels, as "
                          "DataCollatorForLanguageModeling(tokenizer, mlm=False) does")
    positions = tensors.pop("position_ids", None)
    if positions is not None and (positions[..., 1:] <= positions[..., :-1]).any():
        raise ConfigError("samples are packed; remove packing and padding_free, and let Concord pack: "
                          "settings={'sequence_packing': True, 'seq_length': ...}")
    mask = tensors.pop("attention_mask", None)
    kept = torch.ones_like(tensors["input_ids"][0], dtype=torch.bool) if mask is None else mask[0].bool()
    return {name: each[0][kept].tolist() for name, each in tensors.items()}


def metrics_function(trainer):
    """Returns compute_metrics for concord.train: transformers' function with predictions [samples, tokens], or None.

    Concord keeps the most probable token of each place, not logits, so preprocess_logits_for_metrics must be that argmax."""
    if trainer.compute_metrics is None:
        return None
    reduce, logits = trainer.preprocess_logits_for_metrics, torch.randn(2, 3, 5)
    reduced = reduce and reduce(logits, torch.zeros(2, 3, dtype=torch.long))
    if not isinstance(reduced, torch.Tensor) or reduced.shape != (2, 3) or (reduced != logits.argmax(-1)).any():
        raise ConfigError("compute_metrics: Concord keeps the most probable tokens, not the logits; give "
                          "preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1), or remove compute_metrics "
                          "and call evaluate() after train()")

    def compute(samples):
        # Concord's tokens are those that the loss covers; in transformers a prediction stands one place before its label.
        width = max(len(each.labels) for each in samples) + 1
        predictions = torch.full((len(samples), width), -100)
        labels = predictions.clone()
        for row, each in enumerate(samples):
            predictions[row, :len(each.predictions)] = torch.tensor(each.predictions)
            labels[row, 1:1 + len(each.labels)] = torch.tensor(each.labels)
        return trainer.compute_metrics(transformers.EvalPrediction(predictions=predictions.numpy(), label_ids=labels.numpy()))

    return compute


class _Bridge(Callback):
    """Keeps the state of a transformers Trainer during a run, and calls its callbacks."""

    def __init__(self, trainer):
        self.trainer = trainer
        own = [transformers.trainer_callback.DefaultFlowCallback, transformers.trainer_callback.ProgressCallback,
               transformers.PrinterCallback, *map(type, trainer.reporting_callbacks())]
        self.callbacks = [each for each in trainer.callback_handler.callbacks if not isinstance(each, tuple(own))]

    def call(self, event, state, control=None, **more):
        trainer = self.trainer
        trainer.state.global_step, trainer.state.epoch = state.global_step, state.epoch
        trainer.state.max_steps, trainer.state.num_train_epochs = state.max_steps, state.num_train_epochs
        trainer.state.best_metric, trainer.state.best_global_step = state.best_metric, state.best_global_step
        trainer.state.best_model_checkpoint = state.best_model_checkpoint or None
        trainer.control.should_log = trainer.control.should_evaluate = trainer.control.should_save = False
        for each in self.callbacks:
            given = getattr(each, event)(trainer.args, trainer.state, trainer.control, model=trainer.model,
                                         processing_class=trainer.processing_class, **more)
            trainer.control = trainer.control if given is None else given
        if control is not None:
            for name in ("should_training_stop", "should_log", "should_evaluate", "should_save"):
                setattr(control, name, getattr(control, name) or getattr(trainer.control, name))

    def record(self, logs):
        self.trainer.state.log_history.append(logs)
        return logs

    def on_train_begin(self, state, control):
        self.call("on_train_begin", state, control)

    def on_train_end(self, state):
        self.call("on_train_end", state)

    def on_epoch_begin(self, state, control):
        self.call("on_epoch_begin", state, control)

    def on_epoch_end(self, state, control):
        self.call("on_epoch_end", state, control)

    def on_step_begin(self, state, control):
        self.call("on_step_begin", state, control)

    def on_step_end(self, state, control):
        self.call("on_step_end", state, control)

    def on_log(self, state, control, logs):
        self.call("on_log", state, control, logs=self.record(logs))

    def on_evaluate(self, state, control, metrics):
        self.call("on_evaluate", state, control, metrics=self.record(metrics))

    def on_save(self, state, control, folder):
        self.call("on_save", state, control)


class ConcordMixin:
    """The train() of a transformers Trainer, as a run of Concord.

    `settings` are further settings of concord.train. `implementation` is what computes the model: "concord", its own model of
    the same family, which has all settings, "torch", the module itself (docs/python.md, A model of your own), or "auto": the
    former if Concord has the family.
    """

    def __init__(self, *args, settings=None, implementation="auto", **more):
        if implementation not in IMPLEMENTATIONS:
            raise ConfigError(f"implementation is {implementation!r}; must be one of {', '.join(IMPLEMENTATIONS)}")
        self.concord_settings, self.implementation = dict(settings or {}), implementation
        super().__init__(*args, **more)

    def _move_model_to_device(self, model, device):
        pass  # the run places its model, and evaluate() moves the module itself

    def reporting_callbacks(self):
        kinds = transformers.integrations.get_reporting_integration_callbacks(self.args.report_to)
        return [each for each in self.callback_handler.callbacks if type(each) in kinds]

    def train(self, resume_from_checkpoint=None, trial=None, ignore_keys_for_eval=None):
        self.refuse_what_is_ignored(trial, ignore_keys_for_eval)
        if self.model_init is not None:
            transformers.set_seed(self.args.seed)
            self.model = self.call_model_init()
        settings = {**settings_of(self.args), **self.concord_settings}
        if resume_from_checkpoint:
            settings["resume_from_checkpoint"] = resume_from_checkpoint
        if not has_length(self.train_dataset):
            settings["shuffle"] = False
        saved = pathlib.Path(self.args.output_dir) / "model"
        with tempfile.TemporaryDirectory(prefix="concord-") as name:
            folder = pathlib.Path(name)
            settings.update(self.model_settings(folder / "start"))
            settings.update(self.data_settings(folder))
            result = train(callbacks=[_Bridge(self)], compute_metrics=metrics_function(self),
                           loop=saving_loop(str(saved)) if settings["save_strategy"] == "no" else None, **settings)
        if not isinstance(settings["model"], torch.nn.Module):
            self.take_weights(saved)
        self.state.log_history.append({**result.metrics, "step": result.global_step})
        return TrainOutput(result.global_step, result.training_loss, result.metrics)

    def refuse_what_is_ignored(self, trial, ignore_keys_for_eval):
        if self.args.world_size > 1:
            raise ConfigError(f"{type(self).__name__} is used by {self.args.world_size} processes; it trains in one: save the model, and "
                              "train its folder with concord.train on several ranks")
        given = {"trial": trial, "ignore_keys_for_eval": ignore_keys_for_eval, "optimizers": self.optimizer or self.lr_scheduler,
                 "optimizer_cls_and_kwargs": self.optimizer_cls_and_kwargs, "compute_loss_func": self.compute_loss_func}
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"{name} is given, but Concord computes the loss and the update; remove it (concord.train has "
                                  "compute_loss, and settings of optimizers)")
        base = next(each for each in type(self).__mro__ if issubclass(each, transformers.Trainer)
                    and not issubclass(each, ConcordMixin))
        for name in REPLACEABLE:
            if getattr(type(self), name) is not getattr(base, name):
                raise ConfigError(f"{type(self).__name__} overrides {name}, which a run of Concord does not call; remove it")
        if getattr(self.args, "loss_type", None) == "dft":
            raise ConfigError("loss_type is 'dft', which Concord does not have; must be nll")

    def model_settings(self, folder):
        """Returns the settings that name the model; saves it to `folder` unless the module itself is trained."""
        reason = self.reason_for_torch()
        if reason and self.implementation == "concord":
            raise ConfigError(f"implementation concord: {reason}; use implementation='torch'")
        if reason or self.implementation == "torch":
            return {"model": self.model}
        model, adapter = self.model, {}
        state = model.state_dict()
        if is_adapter(model):
            model.save_pretrained(folder / "adapter")
            adapter = {"finetuning_type": "lora", "adapter_name_or_path": folder / "adapter"}
            model = model.get_base_model()
            state = {name.replace(".base_layer.", "."): each for name, each in model.state_dict().items() if ".lora_" not in name}
        model.save_pretrained(folder, state_dict=state)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)
        return {"model": folder, **adapter}

    def reason_for_torch(self):
        """Returns why Concord's own models cannot be this one; empty if they can."""
        kind = type(self.model.get_base_model() if is_adapter(self.model) else self.model).__name__
        if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
            raise ConfigError(f"model is a {kind}; Concord trains causal language models (AutoModelForCausalLM)")
        if is_adapter(self.model) and self.model.active_peft_config.peft_type.value != "LORA":
            return f"its adapter is {self.model.active_peft_config.peft_type.value}, not LORA"
        try:
            core.check_model_config(json.dumps(self.model.config.to_dict()))
        except ConfigError as error:
            return str(error)
        return ""

    def data_settings(self, folder):
        most = None if has_length(self.train_dataset) else self.args.max_steps * self.args.train_batch_size * \
            self.args.gradient_accumulation_steps * self.args.world_size
        settings = {"train_data": self.rows(self.train_dataset, most)}
        if self.eval_dataset is None or settings_of(self.args).get("eval_strategy") == "no":
            return settings
        if not isinstance(self.eval_dataset, dict):
            return {**settings, "eval_data": self.rows(self.eval_dataset)}
        named = {name: write_rows(self.rows(each), f"eval-{name}", folder) for name, each in self.eval_dataset.items()}
        return {**settings, "eval_datasets": named}

    def rows(self, dataset, most=None):
        """Yields the samples as rows of a .jsonl, from the collator without columns that the model does not take."""
        collate = self._get_collator_with_removed_columns(self.data_collator)
        samples = (dataset[index] for index in range(len(dataset))) if has_length(dataset) else iter(dataset)
        return (row_of(collate([sample])) for sample in itertools.islice(samples, most))

    def take_weights(self, folder):
        """Loads the trained weights into the module."""
        weights = load(folder)
        if is_adapter(self.model):
            import peft
            peft.set_peft_model_state_dict(self.model, weights)
            return
        missing, unknown = self.model.load_state_dict(weights, strict=False)
        tied = set(getattr(self.model, "_tied_weights_keys", None) or ())
        if unknown or set(missing) - tied:
            raise ConfigError(f"the weights in {folder} are not those of {type(self.model).__name__}: missing "
                              f"{sorted(set(missing) - tied)}, unknown {unknown}")


def is_adapter(model):
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def saving_loop(folder):
    """Returns a loop for concord.train that saves the model to `folder`, which save_strategy no does not."""
    def loop(trainer):
        while trainer.train_step():
            pass
        trainer.save_model(folder)

    return loop


class ConcordTrainer(ConcordMixin, transformers.Trainer):
    """transformers.Trainer, trained by Concord."""


def __getattr__(name):
    if name != "SFTTrainer":
        raise AttributeError(f"module 'concord.hf' has no attribute '{name}'; it has ConcordTrainer and SFTTrainer")
    import trl  # imports datasets, which takes seconds

    class SFTTrainer(ConcordMixin, trl.SFTTrainer):
        """trl.SFTTrainer, trained by Concord."""

    globals()[name] = SFTTrainer
    return SFTTrainer
