"""The progress of a run in a notebook: a bar, the last numbers and the curve of the loss, updated in place."""

import html
import sys
import time

from concord._train import Callback

WIDTH, HEIGHT = 480, 80  # of the curve
SECONDS = 0.5  # between updates


def in_notebook():
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def curve(losses):
    """Returns an SVG of the losses, [(step, loss)]."""
    steps, values = zip(*losses, strict=True)
    wide, high = max(steps[-1] - steps[0], 1), max(max(values) - min(values), 1e-9)
    points = " ".join(f"{WIDTH * (step - steps[0]) / wide:.1f},{2 + (HEIGHT - 4) * (max(values) - loss) / high:.1f}"
                      for step, loss in losses)
    return (f'<svg width="{WIDTH}" height="{HEIGHT}"><polyline points="{points}" fill="none" stroke="currentColor" '
            'stroke-width="1.5"/></svg>')


class NotebookProgress(Callback):
    """Shows the steps of rank 0, at most twice a second."""

    def __init__(self):
        self.losses, self.numbers, self.shown, self.updated = [], {}, None, 0.0

    def show(self, state, is_last=False):
        from IPython.display import HTML, display

        if not state.is_world_process_zero or (time.monotonic() - self.updated < SECONDS and not is_last):
            return
        self.updated = time.monotonic()
        numbers = "".join(f" · {html.escape(name)} {value:.4g}" for name, value in self.numbers.items())
        bar = f'<progress value="{state.global_step}" max="{state.max_steps}"></progress>'
        page = HTML(f"<div>{bar} {state.global_step}/{state.max_steps}{numbers}</div>"
                    f"{curve(self.losses) if len(self.losses) > 1 else ''}")
        if self.shown is None:
            self.shown = display(page, display_id=True)
        else:
            self.shown.update(page)

    def on_train_begin(self, state, control):
        self.show(state)

    def on_step_end(self, state, control):
        self.show(state)

    def on_log(self, state, control, logs):
        self.losses.append((logs["step"], logs["loss"]))
        if len(self.losses) > 2 * WIDTH:
            del self.losses[1:-1:2]
        self.numbers = {name: logs[name] for name in ("loss", "learning_rate", "tokens_per_second") if name in logs}
        self.show(state)

    def on_train_end(self, state):
        self.show(state, is_last=True)
