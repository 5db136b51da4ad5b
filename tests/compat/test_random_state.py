"""The private places where Keras keeps the state of its random numbers are still there, and still missing in checkpoints."""

import numpy as np
import pytest

from tests.fit import cases
from tf_simigrad.compat import keras_private, random_state


@pytest.fixture
def model(tf):
    """A model with dropout whose random numbers can be saved."""
    if keras_private.KERAS_3:
        yield cases.with_dropout(tf.keras)
        return
    experimental = tf.keras.backend.experimental
    before = experimental.is_tf_random_generator_enabled()
    experimental.enable_tf_random_generator()
    try:
        yield cases.with_dropout(tf.keras)
    finally:
        if not before:
            experimental.disable_tf_random_generator()


def test_restored_states_draw_the_same_masks_again(tf, model, tmp_path):
    states = random_state.random_states(model)
    assert len(states) == 1 and random_state.forgets_random_state(model) == []
    x = np.ones((4, cases.FEATURES), np.float32)
    checkpoint = tf.train.Checkpoint(random=states)
    path = checkpoint.write(str(tmp_path / "state"))
    first, second = (model(x, training=True).numpy() for _ in range(2))
    assert np.abs(first - second).max() > 0
    checkpoint.read(path).assert_consumed()
    np.testing.assert_array_equal(model(x, training=True).numpy(), first)


def test_a_model_saves_none_of_it(tf, model, tmp_path):
    """The day Keras does, random_states is no longer needed."""
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "model"))
    assert not [name for name, _ in tf.train.list_variables(path) if "seed" in name.lower() or "state" in name.lower()]


@pytest.mark.skipif(keras_private.KERAS_3, reason="of tf_keras")
def test_stateful_ops_of_tf_keras_are_recognised(tf):
    model = cases.with_dropout(tf.keras)
    assert random_state.random_states(model) == []
    assert random_state.forgets_random_state(model) == [model.layers[1].name]


def test_a_model_without_random_numbers(tf):
    model = cases.CASES["sequential"].build(tf.keras)
    assert random_state.random_states(model) == [] and random_state.forgets_random_state(model) == []
