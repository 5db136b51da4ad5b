"""Functions of the gradients of many layers, compiled by XLA where shapes allow it."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_simigrad.compat import xla_private

Layers = Sequence[tuple[tf.Tensor, ...]]


def by_layer(function: Callable[..., list]) -> Callable[..., list]:
    """The function compiled by XLA for the layers whose shapes are static; for the others it runs as it is.

    XLA compiles anew for every shape, and the rows of an embedding that an update has touched are another number each time.

    Args:
        function: ``function(layers, *common)`` -> one result per layer, which depends on its tensors and the common ones only.
    """
    compiled = xla_private.compiled(function)

    @functools.wraps(function)
    def call(layers: Layers, *common: tf.Tensor) -> list:
        is_static = [all(t.shape.is_fully_defined() for t in layer) for layer in layers]
        results: list[Any] = [None] * len(layers)
        for run, wanted in ((compiled, True), (function, False)):
            places = [i for i, static in enumerate(is_static) if static is wanted]
            if places:
                for place, result in zip(places, run([layers[i] for i in places], *common), strict=True):
                    results[place] = result
        return results

    return call
