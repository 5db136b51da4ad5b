"""Where Keras keeps the state of its random numbers, such as those of dropout: in nothing that a checkpoint holds."""

from typing import Any

from tf_simigrad.compat.keras_private import KERAS_3


def random_states(model: Any) -> list[Any]:
    """What holds the state of each layer that draws random numbers, in a fixed order, for ``tf.train.Checkpoint``.

    Keras 3 has a variable for each seed generator, which it lists among the model's variables and not among its weights.
    tf_keras has a ``tf.random.Generator`` in each layer, if they were enabled when it was built.

    Args:
        model: Built.
    """
    if KERAS_3:
        return [v.value for v in model.variables if v.name == "seed_generator_state"]
    generators = [_generator(layer) for layer in model.submodules]
    return [generator for generator in generators if generator is not None]


def forgets_random_state(model: Any) -> list[str]:
    """Names of the layers that draw random numbers from a state that cannot be read: tf_keras's, by default.

    Args:
        model: Built.
    """
    if KERAS_3:
        return []
    layers = [layer for layer in model.submodules if getattr(layer, "_random_generator", None) is not None]
    return [layer.name for layer in layers if getattr(layer, "rate", 1) and _generator(layer) is None]


def _generator(layer: Any) -> Any:
    return getattr(getattr(layer, "_random_generator", None), "_generator", None)
