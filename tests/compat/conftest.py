"""Fixtures of the tests of private names."""

import pytest


@pytest.fixture
def k(tf):
    return tf.keras


@pytest.fixture
def pair(tf):
    """Two replicas whose collectives have keys of their own: TensorFlow's count from 1 in every strategy."""
    keyed = type("Keyed", (tf.distribute.MirroredStrategy,), {"_collective_key_base": 70_000})
    return keyed(["CPU:0", "CPU:1"])
