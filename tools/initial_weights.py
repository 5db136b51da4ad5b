"""Weights that a training starts from: those of another run, or a published encoder."""

from pathlib import Path

from models.bert_weights import CONFIG as PUBLISHED
from tools import runs


def check(folder):
    """Raises a ValueError where the folder holds neither, before TensorFlow is imported."""
    if not (Path(folder) / PUBLISHED).is_file():
        try:
            runs.read(folder)
        except ValueError as error:
            raise ValueError(
                f"--initial-weights {folder}: expected the folder of a run, or one that tools.prepare_data bert-weights has "
                f"made ({error})"
            ) from error


def take(model, task, folder):
    """Sets the weights of a model: all of them from a run of the same kind of task, else those of the encoder alone.

    Args:
        model: Of the task, under any strategy.
        task: What it is trained for.
        folder: As `check` wants it.

    Raises:
        ValueError: If there is nothing in the folder that fits.
    """
    folder = Path(folder)
    if (folder / PUBLISHED).is_file():
        from models import bert_weights

        # Loaded outside of the strategy of the model.
        source = task.build()
        if task.encoder_of(source) is not None:
            bert_weights.load(task.encoder_of(source), folder)
        parts = task.encoder_of(source), task.encoder_of(model)
    else:
        run = runs.read(folder)
        source, other = run.model(), run.experiment.task
        same = type(other) is type(task)
        parts = (source, model) if same else (other.encoder_of(source), task.encoder_of(model))
    if None in parts:
        raise ValueError(f"--initial-weights {folder}: it has no part that a {type(task).__name__} can start from")
    copy_weights(*parts, f"--initial-weights {folder}")


def copy_weights(source, target, what):
    found, expected = ([tuple(weight.shape) for weight in part.weights] for part in (source, target))
    if found != expected:
        differing = [f"{f} in place of {e}" for f, e in zip(found, expected, strict=False) if f != e][:3]
        raise ValueError(
            f"{what}: its weights are not those of this network ({len(found)} of them, expected {len(expected)}; "
            f"{', '.join(differing)}). Set the same sizes"
        )
    target.set_weights(source.get_weights())
