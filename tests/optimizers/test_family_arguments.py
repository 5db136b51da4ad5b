"""Arguments of LARS, LAMB and Adam: what is refused, and what is warned of."""

import logging

import numpy as np
import pytest

import tf_simigrad as sg
from tests.optimizers.family import FAMILY

pytestmark = pytest.mark.usefixtures("tf")

KINDS = {"LARS": FAMILY["lars"].kind, "LAMB": FAMILY["lamb"].kind, "Adam": FAMILY["adam"].kind}
BAD = [
    ({"learning_rate": -0.1}, "learning_rate=-0.1 must be a finite number, 0 or more"),
    ({"learning_rate": float("nan")}, "learning_rate=nan must be a finite number"),
    ({"learning_rate": None}, "learning_rate=None must be a number, 0 or more, or a tf.keras.*LearningRateSchedule"),
    ({"learning_rate": "0.1"}, "learning_rate='0.1' must be a number"),
    ({"learning_rate": True}, "learning_rate=True must be a finite number"),
    ({"weight_decay": -1e-4}, "weight_decay=-0.0001 must be a finite number, 0 or more"),
    ({"weight_decay": None}, "weight_decay=None must be"),
    ({"epsilon": -1e-8}, "epsilon=-1e-08 must be a finite number"),
    ({"exclude_from_decay": "bias"}, "exclude_from_decay='bias' must be a list of patterns"),
    ({"exclude_from_decay": None}, r"exclude_from_decay=None must be a list of patterns.*\[\] names no variable"),
    ({"exclude_from_decay": ["bias", "(kernel"]}, r"the pattern '\(kernel' in exclude_from_decay is no regular expression"),
    ({"clipnorm": -1.0}, "clipnorm=-1.0 must be a finite number, above 0"),
    ({"global_clipnorm": 0.0}, "global_clipnorm=0.0 must be a finite number, above 0"),
    ({"clipvalue": "1"}, "clipvalue='1' must be a finite number, above 0"),
    ({"decay": 1e-4}, "has no argument decay. Beside its own it takes those of Keras: clipnorm, clipvalue"),
    ({"lr": 0.1, "beta": 1}, "has no argument beta, lr"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[str(arguments) for arguments, _ in BAD])
@pytest.mark.parametrize("name", KINDS)
def test_bad_arguments_are_refused(name, arguments, message):
    with pytest.raises(ValueError, match=f"^{name}.*{message}"):
        KINDS[name](**{"learning_rate": 0.1, **arguments})


@pytest.mark.parametrize("name", ["LARS", "LAMB"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.5, "=0.5 must be None, or \\(low, high\\)"),
        ("01", "='01' must be None"),
        ((1.0,), "=\\(1.0,\\) must be None"),
        ((1.0, 2.0, 3.0), ".* must be None"),
        ((-1.0, 2.0), r"\[0\]=-1.0 must be a finite number, 0 or more"),
        ((0.0, 0.0), r"\[1\]=0.0 must be a finite number, above 0"),
        ((0.0, float("inf")), r"\[1\]=inf must be a finite number"),
        ((2.0, 1.0), "=\\(2.0, 1.0\\) must be \\(low, high\\) with low no larger than high"),
        ((None, 1.0), r"\[0\]=None must be"),
    ],
)
def test_bad_bounds_are_refused(name, value, message):
    with pytest.raises(ValueError, match=f"^{name}: trust_ratio_bounds{message}"):
        KINDS[name](0.1, trust_ratio_bounds=value)


@pytest.mark.parametrize("name", ["LARS", "LAMB"])
@pytest.mark.parametrize("value", ["bias", [1], None])
def test_bad_patterns_of_adaptation_are_refused(name, value):
    with pytest.raises(ValueError, match=f"^{name}: exclude_from_adaptation=.* must be a list of patterns"):
        KINDS[name](0.1, exclude_from_adaptation=value)


def test_whole_numbers_and_numbers_of_numpy_are_numbers(tf):
    for rate in (2, np.float32(2), np.int64(2), np.float64(2)):
        optimizer = sg.LARS(rate, momentum=0, weight_decay=np.float32(0.5), trust_ratio_bounds=[0, 1])
        assert float(optimizer.learning_rate) == 2.0
        config = optimizer.get_config()
        assert (config["momentum"], config["weight_decay"], config["trust_ratio_bounds"]) == (0.0, 0.5, [0.0, 1.0])
        assert {type(config[key]) for key in ("learning_rate", "momentum", "weight_decay")} == {float}


@pytest.mark.parametrize("name", KINDS)
def test_excluding_in_the_way_of_keras_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} does not use exclude_from_weight_decay.*exclude_from_decay="):
        KINDS[name](0.1, weight_decay=0.1).exclude_from_weight_decay(var_names=["bias"])


@pytest.mark.parametrize("name", KINDS)
def test_a_pattern_that_matches_nothing_is_warned_of_once(tf, caplog, name):
    """The default ones, which match no variable of this layer, are not."""
    layer = tf.keras.layers.Dense(1, use_bias=False, name="alone")
    layer.build((None, 1))
    with caplog.at_level(logging.WARNING, logger="tf_simigrad"):
        KINDS[name](0.1).build(layer.trainable_variables)
        assert not caplog.records
        optimizer = KINDS[name](0.1, exclude_from_decay=["kernel", "Bias"])
        optimizer.build(layer.trainable_variables)
        optimizer.build(layer.trainable_variables)
        if name != "Adam":
            KINDS[name](0.1, exclude_from_adaptation=["gamma"]).build(layer.trainable_variables)
    messages = [record.getMessage() for record in caplog.records]
    assert f"{name}: the pattern 'Bias' in exclude_from_decay matches no trainable variable" in messages[0]
    assert "kernel" in messages[0]
    assert [("exclude_from_adaptation" in m) for m in messages[1:]] == ([] if name == "Adam" else [True])
