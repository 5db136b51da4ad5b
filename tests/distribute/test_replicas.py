"""What a strategy offers, and which ones are refused."""

import types

import numpy as np
import pytest

from tf_simigrad.distribute.replicas import Replicas, check_strategy, static_replica_id

pytestmark = pytest.mark.one_keras

COUNTS = [1, 2, 3, 5]


@pytest.fixture
def replicas(strategies, request):
    return Replicas(strategies(request.param))


def ids(tf):
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)


@pytest.mark.parametrize(("replicas", "count"), [(n, n) for n in COUNTS], indirect=["replicas"])
def test_number_and_devices(tf, strategies, replicas, count):
    assert replicas.count == count
    devices = [tf.DeviceSpec.from_string(device) for device in replicas.devices]
    assert [device.device_index for device in devices] == (list(range(count)) if count > 1 else [])
    if count > 1:
        assert replicas.name == "MirroredStrategy"


@pytest.mark.parametrize("replicas", COUNTS, indirect=True)
def test_run_first_local(tf, replicas):
    @tf.function
    def step(argument):
        values = replicas.run(lambda x: (x + ids(tf), {"square": ids(tf) ** 2}), (argument,))
        return replicas.first(values), replicas.local(values[1]["square"])

    (first, rest), squares = step(tf.constant(10.0))
    n = replicas.count
    assert float(first) == 10.0
    assert float(rest["square"]) == 0.0
    assert [float(s) for s in squares] == [i**2 for i in range(n)]


@pytest.mark.parametrize("replicas", COUNTS, indirect=True)
def test_replica_id_is_a_number_while_tracing(tf, replicas):
    seen = []

    @tf.function
    def step():
        return replicas.run(lambda: seen.append(static_replica_id()) or tf.constant(0))

    step()
    assert sorted(seen) == list(range(replicas.count))
    assert all(type(index) is int for index in seen)


@pytest.mark.parametrize("replicas", COUNTS, indirect=True)
def test_each_replica_has_its_own_variable(tf, replicas):
    variable = replicas.per_replica_variable([2, 3], "sum")
    assert (variable.shape, variable.dtype, variable.trainable) == ((2, 3), tf.float32, False)
    assert all(not part.numpy().any() for part in replicas.local(variable))

    @tf.function
    def add():
        def one():
            variable.assign_add(tf.fill([2, 3], 1.0 + ids(tf)))
            return tf.convert_to_tensor(variable)

        return replicas.local(replicas.run(one))

    add()
    read = add()
    for index, (part, value) in enumerate(zip(replicas.local(variable), read, strict=True)):
        np.testing.assert_array_equal(part, np.full((2, 3), 2.0 * (1 + index)))
        np.testing.assert_array_equal(value, part)


def test_supported_strategies(tf, strategies):
    one_device = (tf.distribute.OneDeviceStrategy("CPU:0"), tf.distribute.MirroredStrategy(["CPU:0"]))
    for strategy in (strategies(1), strategies(2), *one_device):
        check_strategy(strategy)


def fake(kind, multi_worker=False):
    """A strategy of that kind without the cluster that it needs."""
    strategy = object.__new__(kind)
    object.__setattr__(strategy, "_extended", types.SimpleNamespace(
        _in_multi_worker_mode=lambda: multi_worker, _num_replicas_in_sync=2))  # fmt: skip
    return strategy


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ParameterServerStrategy", "does not support ParameterServerStrategy: .*no common gradient .* Use MirroredStrategy"),
        ("experimental.ParameterServerStrategy", "does not support ParameterServerStrategy"),
        ("experimental.CentralStorageStrategy", "was built under CentralStorageStrategy"),
    ],
)
def test_other_strategies_are_refused(tf, name, message):
    kind = tf.distribute
    for part in name.split("."):
        kind = getattr(kind, part)
    with pytest.raises(ValueError, match=message):
        check_strategy(fake(kind))


def test_a_strategy_derived_from_a_refused_one_is_refused(tf):
    with pytest.raises(ValueError, match="no common gradient"):
        check_strategy(fake(type("Own", (tf.distribute.ParameterServerStrategy,), {})))


def test_central_storage_is_refused(tf):
    strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0"], "CPU:0")
    with pytest.raises(ValueError, match="was built under CentralStorageStrategy"):
        check_strategy(strategy)
