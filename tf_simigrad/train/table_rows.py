"""Which gradients stay rows: those of large tables, where nothing needs them dense."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_simigrad.compat import keras_optimizer, keras_private
from tf_simigrad.distribute.replicas import Replicas
from tf_simigrad.optimizers.vrgd import VRGD
from tf_simigrad.train.forward import Forward

_LOG = logging.getLogger("tf_simigrad")
_MOST_ROWS = 2**31 - 1
"""Of a table: the index of a row travels as an int32."""


def kept_as_rows(
    model: Any,
    variables: Sequence[Any],
    replicas: Replicas,
    forward: Forward,
    vrgd: VRGD | None,
    element: Any,
    dense_table_elements: int | None,
) -> list[bool]:
    """For each variable, whether its gradient stays rows; what decides about large ones is logged.

    Args:
        model: The Keras model, compiled.
        variables: Its trainable variables.
        replicas: Where it lives.
        forward: What computes the gradients.
        vrgd: That of the transforms, or None.
        element: Spec of a dataset element as one replica sees it; None: all are dense.
        dense_table_elements: Those of larger variables stay rows, if they come as such; None: none do.

    Raises:
        ValueError: If a table has more rows than can be numbered.
    """
    large = [dense_table_elements is not None and math.prod(v.shape) > dense_table_elements for v in variables]
    dense = [False] * len(variables)
    # On a TPU shapes have to be known beforehand; without a trace, as in run_eagerly, nothing tells what comes as rows.
    if not any(large) or element is None or replicas.is_compiled or model.run_eagerly:
        return dense
    found = [both == (True, True) for both in zip(large, _are_slices(replicas, forward, element), strict=True)]
    tables = [v for v, is_found in zip(variables, found, strict=True) if is_found]
    if not tables:
        return dense
    paths = ", ".join(keras_private.variable_path(v) for v in tables)
    if reason := _reason_to_be_dense(model, vrgd):
        _LOG.warning("Gradients of %s are dense, however few rows are touched: %s.", paths, reason)
        return dense
    if (longest := max(v.shape[0] for v in tables)) > _MOST_ROWS:
        raise ValueError(
            f"{paths}: a table of {longest} rows; gradients are kept as rows for {_MOST_ROWS} at most. Split the table, or "
            "pass AdaptiveBatch(dense_table_elements=None)."
        )
    _LOG.info("Gradients of %s are kept as rows: more than %d elements each.", paths, dense_table_elements)
    if keras_optimizer.compiles_by_xla(model.optimizer):
        _LOG.warning(
            "The optimizer compiles its step by XLA, on gradients of %s anew for every number of rows. Pass jit_compile=False "
            "to it.",
            paths,
        )
    return found


def _are_slices(replicas: Replicas, forward: Forward, element: Any) -> list[bool]:
    """For each variable, whether its gradient comes as rows. Only a trace can tell: one is made and thrown away."""
    found: list[bool] = []

    def micro_step(data: Any) -> None:
        found[:] = [isinstance(gradient, tf.IndexedSlices) for gradient in forward.gradients(data)[0]]

    tf.function(lambda data: replicas.run(micro_step, (data,)), autograph=False).get_concrete_function(element)
    return found


def _reason_to_be_dense(model: Any, vrgd: VRGD | None) -> str | None:
    if model.jit_compile:
        return "jit_compile needs shapes that are known beforehand; with model.compile(jit_compile=False) they would be rows"
    if vrgd is not None and vrgd.has_state_of_elements:
        return "VRGD keeps a number for each element; without ratio_momentum and second_moment='raw' they would be rows"
    return None
