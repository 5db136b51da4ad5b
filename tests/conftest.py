"""Shared by all tests: eight logical CPU devices, and strategies over the first N of them."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture(scope="session")
def tf():
    """TensorFlow with eight logical CPU devices and one thread each, so that several replicas fit on two cores."""
    import tensorflow

    cpu = tensorflow.config.list_physical_devices("CPU")[0]
    tensorflow.config.set_logical_device_configuration(cpu, [tensorflow.config.LogicalDeviceConfiguration()] * 8)
    return tensorflow


@pytest.fixture(scope="session")
def strategies(tf):
    """``strategies(n)``: the default strategy for 1, MirroredStrategy over n CPU devices for more; one object per n."""
    made = {}

    def strategy(replicas):
        if replicas == 1:
            return tf.distribute.get_strategy()
        if replicas not in made:
            # TensorFlow gives the collectives of every MirroredStrategy the same keys; strategies of several sizes in one
            # process break each other's, unless their keys start apart.
            keys = {"_collective_key_base": 1000 * replicas}
            kind = type("MirroredStrategy", (tf.distribute.MirroredStrategy,), keys)
            made[replicas] = kind([f"CPU:{i}" for i in range(replicas)])
        return made[replicas]

    return strategy


@pytest.fixture
def one_core(tf, monkeypatch):
    """TPUStrategy's own class over one core that is described, whose programs run on the CPU."""
    from tf_simigrad.compat import tpu_description

    strategy = tpu_description.described_strategy(1)

    def run(fn, args=(), kwargs=None, options=None):
        specs = tf.nest.map_structure(tf.type_spec_from_value, args)
        return tpu_description.replica_function(strategy, fn, specs)(*args)

    monkeypatch.setattr(strategy, "run", run)
    return strategy


@pytest.fixture
def data_dir():
    """The folder of real data named by TF_SIMIGRAD_DATA; the test is skipped where there is none."""
    folder = os.environ.get("TF_SIMIGRAD_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs real data: set TF_SIMIGRAD_DATA to a folder with cifar10/")
    return Path(folder)
