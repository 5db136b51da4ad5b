"""What a model gives comes back for every example, in the order of the examples, whatever the replicas are."""

import numpy as np
import pytest

pytestmark = pytest.mark.one_keras

WIDTH = 3


def examples(count):
    """Float32 [count, WIDTH]; each row says which it is."""
    return np.arange(count * WIDTH, dtype=np.float32).reshape(count, WIDTH)


def outputs(tf, strategy, dataset, weight=2.0):
    """The outputs of a step that reads a variable of the strategy, with the replica that computed each."""
    from models import evaluation

    with strategy.scope():
        factor = tf.Variable(weight)

    def step(features):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return {
            "scaled": factor * features["x"],
            "index": tf.cast(features["x"][:, 0] / WIDTH, tf.int32),
            "replica": tf.fill(tf.shape(features["x"])[:1], replica),
        }

    return list(evaluation.Outputs(strategy, step)(dataset))


def dataset(tf, x, element):
    """Elements of a dictionary, static where nothing remains, as the tasks make them."""
    return tf.data.Dataset.from_tensor_slices({"x": x}).batch(element, drop_remainder=len(x) % element == 0)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    ("count", "lengths"),
    [(12, [4, 4, 4]), (9, [4, 4, 1]), (11, [4, 4, 3]), (1, [1])],
    ids=["whole", "one more", "three more", "one only"],
)
def test_outputs_are_those_of_the_examples_in_order(tf, strategies, replicas, count, lengths):
    x = examples(count)
    found = outputs(tf, strategies(replicas), dataset(tf, x, 4))
    assert [len(element["scaled"]) for element in found] == lengths
    assert all(isinstance(value, np.ndarray) for element in found for value in element.values())
    np.testing.assert_array_equal(np.concatenate([element["scaled"] for element in found]), 2 * x)
    np.testing.assert_array_equal(np.concatenate([element["index"] for element in found]), range(count))


@pytest.mark.parametrize("element", [3, 5])
def test_elements_that_replicas_share_unequally(tf, strategies, element):
    x = examples(2 * element)
    found = outputs(tf, strategies(2), dataset(tf, x, element))
    assert [len(one["index"]) for one in found] == [element, element]
    np.testing.assert_array_equal(np.concatenate([one["index"] for one in found]), range(2 * element))


def test_a_step_is_traced_once_for_several_datasets(tf, strategies):
    from models import evaluation

    traced = []

    def step(features):
        traced.append(features["x"].shape)
        return {"x": features["x"]}

    outputs = evaluation.Outputs(strategies(1), step)
    for _ in range(3):
        assert len(list(outputs(dataset(tf, examples(8), 4)))) == 2
    assert len(traced) == 1


def test_all_replicas_work(tf, strategies):
    for element in outputs(tf, strategies(2), dataset(tf, examples(8), 4)):
        assert element["replica"].tolist() == [0, 0, 1, 1]
