"""One replica's programs of a training, traced in the replica context of a TPUStrategy and lowered to HLO."""

import math
import re
from typing import NamedTuple

import tensorflow as tf

from tf_simigrad.compat import tpu_description
from tf_simigrad.train.update import INPUT_SPECS

SLOT = tf.TensorSpec([], tf.int32)


class LoweringError(ValueError):
    """A program that cannot be made into one for a TPU, with the reason in its first line."""


class Lowered(NamedTuple):
    """A program before it is compiled.

    Attributes:
        hlo: Serialized HloModuleProto.
        elsewhere: Bytes of the training's variables that this program does not touch: they stay in memory beside it.
    """

    hlo: bytes
    elsewhere: int


class Training:
    """A compiled model with its callback under a described TPUStrategy, for elements of one size.

    Args:
        strategy: From `tpu_description.described_strategy`.
        model: Compiled in its scope.
        adaptive: The callback.
        element: Nested `tf.TensorSpec` of what one replica is given in a micro-step.

    Raises:
        ValueError: If `fit` would refuse the model or the elements.
    """

    def __init__(self, strategy, model, adaptive, element):
        self.strategy, self.model, self.adaptive, self.element = strategy, model, adaptive, element
        adaptive.check(model)
        self.parts = adaptive.train_parts(model, element)

    @property
    def gradient_bytes(self):
        return 4 * sum(math.prod(v.shape) for v in self.model.trainable_variables)

    def micro_step(self):
        return self.lowered(self.parts.step.accumulate, (self.element, SLOT))

    def update(self):
        """After `micro_step`, which finds out what has a gradient."""
        return self.lowered(self.parts.step.update_program(), tuple(INPUT_SPECS))

    def plain_step(self):
        """What Keras's own `fit` runs for each dataset element, with the same optimizer."""
        return self.lowered(self.keras_step if self.adaptive.loss_fn is None else self.own_step, (self.element,))

    def keras_step(self, element):
        self.model.train_step(element)

    def own_step(self, element):
        """The step of a model with a `loss_fn`: means over the examples of all replicas."""
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            returned = self.adaptive.loss_fn(self.model, element)
            loss = returned[0] if isinstance(returned, tuple) else returned
            loss = tf.cast(loss, tf.float32) / self.strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, variables)
        self.model.optimizer.apply_gradients([(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None])

    def lowered(self, fn, specs):
        try:
            function = tpu_description.replica_function(self.strategy, fn, specs)
            hlo = tpu_description.hlo(function)
        except (tf.errors.OpError, ValueError, NotImplementedError) as error:
            raise LoweringError(readable(str(error))) from error
        held = {id(tensor) for tensor in function.captured_inputs}
        return Lowered(hlo, sum(size_of(v) for v in self.variables() if id(v.handle) not in held))

    def variables(self):
        """Of the whole training: weights and statistics, metrics, optimizer, gradient sums, what a VRGD keeps."""
        optimizer = self.model.optimizer.variables
        # A method in the first generation of optimizers.
        optimizer = optimizer() if callable(optimizer) else optimizer
        metrics = [variable for metric in self.model.metrics for variable in metric.variables]
        return [*self.model.variables, *metrics, *optimizer, *self.parts.variables]


def size_of(variable):
    return math.prod(variable.shape) * variable.dtype.size


def readable(message):
    """The reason of a failed lowering in one line: which operations a TPU lacks and where they were made, or what it says."""
    unsupported = re.findall(r"(\w+) \(No registered '\w+' OpKernel", message)
    if unsupported:
        # Where an operation is made inside a condition, what follows is about the condition.
        created, _, defined = message.partition("Stack trace for op definition")
        places = re.findall(r'File "([^"]+", line \d+)', created) or re.findall(r'File "([^"]+", line \d+)', defined)
        made = [place for place in places if "site-packages" not in place]
        where = f", made in {made[-1].replace(chr(34), '')}" if made else ""
        return f"TPUs lack the operation {', '.join(dict.fromkeys(unsupported))}{where}"
    said = re.search(r"error: (?:loc\(.*?\): )?(.+)", message)
    lines = message.removeprefix("Failed getting HLO text: '").splitlines()
    return said[1] if said else next((line for line in lines if line.strip()), "no reason is given")
