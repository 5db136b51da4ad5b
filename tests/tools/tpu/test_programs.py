"""Programs of a training: which variables they touch, what they say, and one line for what cannot be compiled."""

import pytest
import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2

import tf_simigrad as sg
from tests.tpu.libtpu import CORES, needs_libtpu
from tf_simigrad.compat import keras_private, tpu_description, xla_private
from tf_simigrad.distribute.reduction_records import COUNTERS
from tools.tpu import measurement, optimised, programs

pytestmark = [
    pytest.mark.usefixtures("tf"),
    pytest.mark.skipif(keras_private.KERAS_3, reason="TPUStrategy is supported under tf_keras only"),
]

FEATURES, OUTPUTS, EXAMPLES = 4, 3, 16
ELEMENTS = (FEATURES + 1) * OUTPUTS
ELEMENT = (tf.TensorSpec([EXAMPLES, FEATURES]), tf.TensorSpec([EXAMPLES, OUTPUTS]))


class Calls(tf.keras.layers.Layer):
    """A layer that calls a function on its input."""

    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def call(self, inputs):
        return self.fn(inputs)


def squared_error(model, data):
    x, y = data
    return tf.reduce_mean(tf.square(model(x, training=True) - y))


def momentum():
    return tf.keras.optimizers.SGD(0.1, momentum=0.9), None


def vr_lamb():
    return sg.vr_lamb(0.01, groups="replicas")


def made(fn=None, pair=momentum, loss_fn=None, spec=ELEMENT):
    """The training of one dense layer, after the function."""
    strategy = tpu_description.described_strategy(CORES)
    with strategy.scope():
        layers = [tf.keras.Input((FEATURES,)), *([Calls(fn)] if fn else []), tf.keras.layers.Dense(OUTPUTS)]
        model = tf.keras.Sequential(layers)
        optimizer, transform = pair()
        model.compile(optimizer, loss=None if loss_fn else "mse")
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(EXAMPLES * CORES), transform=transform, loss_fn=loss_fn)
    return programs.Training(strategy, model, adaptive, spec)


# ---- the reason of a failed lowering


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("""Detected unsupported operations: AsString (No registered 'AsString' OpKernel for XLA_CPU_JIT devices)
PyFunc (No registered 'PyFunc' OpKernel for XLA_CPU_JIT devices) AsString (No registered 'AsString' OpKernel)
Stack trace for op definition:
File "home/me/train.py", line 3
File "home/me/model.py", line 25, in call
File "venv/lib/site-packages/tensorflow/ops.py", line 94""",
         "TPUs lack the operation AsString, PyFunc, made in home/me/model.py, line 25"),
        ("""Detected unsupported operations in cond_true: PyFunc (No registered 'PyFunc' OpKernel)
The op is created at:
File "package/update.py", line 123
File "home/me/transform.py", line 8
Stack trace for op definition:
File "package/update.py", line 125""",
         "TPUs lack the operation PyFunc, made in home/me/transform.py, line 8"),
        ("PyFunc (No registered 'PyFunc' OpKernel)", "TPUs lack the operation PyFunc"),
        ("""Failed getting HLO text: 'TF to XLA legalization failed:
<unknown>:0: error: loc(fused["XlaAllReduce:", "XlaAllReduce"]): replica id #3 not seen in replica groups
<unknown>:0: error: loc(fused["XlaAllReduce:", "XlaAllReduce"]): failed to infer""",
         "replica id #3 not seen in replica groups"),
        ('a.py:1: error: loc("x"("a.py":2:3)): too (very) large: 7', "too (very) large: 7"),
        ("a.py:1: error: too large", "too large"),
        ("Failed getting HLO text: 'Input 0 to node `zeros` must be a compile-time constant.\nmore",
         "Input 0 to node `zeros` must be a compile-time constant."),
        ("\n\nsome reason\nmore", "some reason"),
        (" \n", "no reason is given"),
    ],
)  # fmt: skip
def test_a_message_becomes_one_line(message, line):
    assert programs.readable(message) == line


def error_of(program, topology="v5e:2x4", **arguments):
    """The one line that is left of what goes wrong."""
    found = measurement.measure_program(made(**arguments), program, topology, CORES, False, lambda line: None)
    assert "\n" not in found["error"]
    return found


def as_text(x):
    return x + tf.strings.to_number(tf.strings.as_string(x))


def as_numpy(x):
    return x + tf.ensure_shape(tf.numpy_function(lambda value: value, [x], tf.float32), x.shape)


@pytest.mark.parametrize("program", ["micro_step", "plain_step"])
@pytest.mark.parametrize(("fn", "operation"), [(as_text, "AsString"), (as_numpy, "PyFunc")])
def test_an_operation_that_tpus_lack(fn, operation, program):
    line = fn.__code__.co_firstlineno + 1
    error = error_of(program, fn=fn)["error"]
    assert error.startswith(f"TPUs lack the operation {operation}, made in ")
    assert error.endswith(f"tests/tools/tpu/test_programs.py, line {line}")


def of_size_known_at_run_time(x):
    return x + tf.reduce_sum(tf.zeros([tf.cast(tf.reduce_sum(x), tf.int32)]))


def test_a_shape_that_the_data_decide():
    error = error_of("micro_step", fn=of_size_known_at_run_time)["error"]
    assert "must be a compile-time constant" in error


def without_replicas_3_and_7(x):
    return xla_private.all_reduce_sum(x, [[0, 1, 2], [4, 5, 6]])


def without_replicas_6_and_7(x):
    return xla_private.all_reduce_sum(x, [[0, 1, 2], [3, 4, 5]])


def test_groups_that_leave_out_a_replica():
    assert error_of("micro_step", fn=without_replicas_3_and_7)["error"] == "replica id #3 not seen in replica groups"


@needs_libtpu
def test_groups_that_leave_out_the_last_replicas():
    error = error_of("micro_step", fn=without_replicas_6_and_7)["error"]
    assert "replica groups should contain 8 replicas, but found 6" in error


def by_large_matrices(x):
    """Of 4 GiB each, of which two are needed at the same time."""
    row = tf.range(32_768, dtype=tf.float32)
    matrix = tf.tensordot(tf.reduce_sum(x) * row, row, axes=0)
    for _ in range(3):
        matrix = tf.linalg.matmul(tf.sin(matrix), matrix)
    return x + tf.reduce_max(matrix)


@needs_libtpu
def test_a_program_that_does_not_fit():
    found = error_of("micro_step", "v2:2x2", fn=by_large_matrices)
    assert not found["fits"]
    assert "it does not fit: " in found["error"] and "of 7.48G per core are used" in found["error"]


@pytest.mark.parametrize("shapes", [([None, FEATURES], [None, OUTPUTS]), ([EXAMPLES, FEATURES], [EXAMPLES, None])])
def test_elements_of_unknown_shape_are_refused(shapes):
    with pytest.raises(ValueError, match="a TPU's program needs to know it beforehand"):
        made(spec=tuple(tf.TensorSpec(shape) for shape in shapes))


# ---- what programs hold


def sizes(*elements):
    return 4 * sum(elements)


SLOTS = {"momentum": ELEMENTS, "vr_lamb": 2 * ELEMENTS}
# Two elements of the kernel's twelve and one of the bias on each core, and the number of updates.
STATE = {"momentum": 0, "vr_lamb": 2 + 1 + 1}
# Keras does not name the learning rate among the optimizer's variables.
ITERATIONS, LOSS_METRIC = 8, 2 * 4


@pytest.mark.parametrize("pair", [momentum, vr_lamb])
@pytest.mark.parametrize("loss_fn", [None, squared_error])
def test_variables_that_a_program_leaves_alone(pair, loss_fn):
    training = made(pair=pair, loss_fn=loss_fn)
    state, slots = sizes(STATE[pair.__name__]), sizes(SLOTS[pair.__name__])
    assert training.gradient_bytes == sizes(ELEMENTS)
    assert training.micro_step().elsewhere == slots + ITERATIONS + state
    # That of a loss_fn is no metric of the model.
    assert training.update().elsewhere == (0 if loss_fn else LOSS_METRIC)
    assert training.plain_step().elsewhere == sizes(ELEMENTS, len(COUNTERS)) + state


def sent(lowered):
    """The operands of the collectives of a program that is not compiled yet."""
    module = hlo_pb2.HloModuleProto.FromString(lowered.hlo)
    found = optimised.collectives(hlo_pb2.HloProto(hlo_module=module).SerializeToString(), CORES)
    assert all(collective.groups == [list(range(CORES))] for collective in found)
    return sorted(shape for collective in found for shape in collective.shapes)


def test_the_plain_step_reduces_gradients_and_metrics():
    assert sent(made().plain_step()) == ["f32[3]", "f32[4,3]", "f32[]", "f32[]"]


def test_the_plain_step_of_a_loss_fn_reduces_gradients():
    assert sent(made(loss_fn=squared_error).plain_step()) == ["f32[3]", "f32[4,3]"]


def test_a_micro_step_reduces_no_gradient():
    assert sent(made().micro_step()) == ["f32[]", "f32[]"]
