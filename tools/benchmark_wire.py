"""Bytes that one replica sends per update, counted in the graph that fit has traced."""

import math
import sys
from typing import NamedTuple

import tensorflow as tf

import tf_simigrad as sg

# Elements that each of n replicas sends, by the shape of its input: a row to each other one (all-to-all), or around a ring.
SENT = {
    "CollectiveAllToAllV2": lambda shape, n: (n - 1) * math.prod(shape[1:]),
    "CollectiveGatherV2": lambda shape, n: (n - 1) * math.prod(shape),
    "CollectiveReduceV2": lambda shape, n: 2 * math.prod(shape) * (n - 1) / n,
}
LOOPS = ("While", "StatelessWhile", "For")


class Message(NamedTuple):
    """One collective as one replica takes part in it."""

    operation: str
    shape: tuple
    dtype: str
    bytes: float


class UpdateGraph(tf.keras.callbacks.Callback):
    """Takes the graph of the update while `fit` runs: tf_keras traces within the strategy's scope, Keras 3 does not."""

    def __init__(self, adaptive):
        super().__init__()
        self.adaptive, self.graph = adaptive, None

    def on_train_batch_end(self, batch, logs=None):
        if len(self.adaptive.history) == 1 and self.graph is None:
            self.graph = update_graph(self.adaptive)


def measure(strategy, elements, vrgd="none"):
    graph, variables = fit(strategy, elements, vrgd)
    messages = of_one_replica(collectives(graph), strategy.num_replicas_in_sync)
    gradient_elements = sum(math.prod(v.shape) for v in variables)
    sent, plain = sum(m.bytes for m in messages), plain_bytes(gradient_elements, strategy.num_replicas_in_sync)
    return {
        "ratio": sent / plain,
        "bytes": sent,
        "plain_bytes": plain,
        "gradient_elements": gradient_elements,
        "vrgd": vrgd,
        "operations": [m._asdict() for m in messages],
    }


def plain_bytes(gradient_elements, replicas):
    """What each replica sends in a ring all-reduce of a float32 gradient."""
    return 4 * SENT["CollectiveReduceV2"]((gradient_elements,), replicas)


def fit(strategy, elements, vrgd):
    """Two updates of a model whose gradient has at least so many elements, nearly all in one variable: graph, variables."""
    model, dataset = model_and_data(strategy, elements)
    transform = None if vrgd == "none" else sg.VRGD(groups=vrgd)
    micro_steps = 1 if transform is None else -(-transform.FEWEST_GROUPS // strategy.num_replicas_in_sync)
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(micro_steps * strategy.num_replicas_in_sync), transform=transform)
    update = UpdateGraph(adaptive)
    model.fit(dataset, steps_per_epoch=2 * micro_steps, shuffle=False, verbose=0, callbacks=[adaptive, update])
    return update.graph, model.trainable_variables


def model_and_data(strategy, elements):
    """A model whose gradient has at least so many elements, and endless data of one example per replica."""
    width, replicas = math.isqrt(elements - 1) + 1, strategy.num_replicas_in_sync
    print(f"a model {width} units wide on {replicas} replicas", file=sys.stderr, flush=True)
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input((4,)), tf.keras.layers.Dense(width), tf.keras.layers.Dense(width), tf.keras.layers.Dense(1)]
        )
        model.compile(optimizer=tf.keras.optimizers.SGD(1e-6), loss="mse")
    return model, tf.data.Dataset.from_tensors((tf.ones([replicas, 4]), tf.ones([replicas, 1]))).repeat()


def update_graph(adaptive):
    """The graph of the update that `fit` ran: asked for by the same signature, it is not traced again."""
    step = adaptive._preparation.parts.step
    graph = step.update_graph()
    if step.traces["update"] != 1:
        raise ValueError("the update has another signature than expected: this is not the graph that fit ran")
    return graph


def collectives(graph, device=""):
    """(device, message) of every collective in the graph and in the functions that it calls, in the order of their creation."""
    found = []
    for op in graph.get_operations():
        where = op.device or device
        if op.type.startswith("Collective"):
            found.append((where, message(op)))
        called = [collectives(graph._get_function(name).graph, where) for name in called_functions(op)]
        if op.type in LOOPS and any(called):
            raise ValueError(f"{op.name}: a collective in a loop, so that the graph does not tell how often it runs")
        # One of the branches of a condition runs: the one that sends more is taken.
        found += max(called, key=lambda branch: sum(m.bytes for _, m in branch), default=[])
    return found


def called_functions(op):
    for value in op.node_def.attr.values():
        functions = [value.func] if value.HasField("func") else value.list.func
        yield from (function.name for function in functions)


def message(op):
    if op.type not in SENT:
        raise ValueError(f"{op.name}: what a {op.type} sends is not known; known: {', '.join(SENT)}")
    tensor, replicas = op.inputs[0], tf.get_static_value(op.inputs[1])
    if not tensor.shape.is_fully_defined() or replicas is None:
        raise ValueError(f"{op.name}: {op.type} of shape {tensor.shape} over {replicas} replicas: expected static ones")
    shape = tuple(tensor.shape.as_list())
    return Message(op.type, shape, tensor.dtype.name, SENT[op.type](shape, int(replicas)) * tensor.dtype.size)


def of_one_replica(found, replicas):
    """The messages of the first replica, all of which have to send the same."""
    by_device = {}
    for device, sent in found:
        by_device.setdefault(device, []).append(sent)
    first, *others = by_device.values() or [[]]
    if len(by_device) != replicas or any(other != first for other in others):
        counts = {device: len(sent) for device, sent in by_device.items()}
        raise ValueError(f"expected the same collectives on each of {replicas} devices, found {counts}")
    return first
