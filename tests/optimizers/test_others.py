"""Optimizers of Keras, tf-models-official and TensorFlow Addons: in the callback as in plain ``fit``, and ours as theirs."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tf_simigrad as sg
from tests.fit import cases
from tests.optimizers.family import LAYERS, arrays, layers, random_gradients
from tf_simigrad.compat import keras_private
from tf_simigrad.compat.addons_aliases import enable_tensorflow_addons

pytestmark = [pytest.mark.usefixtures("tf"), pytest.mark.filterwarnings("ignore::UserWarning:tensorflow_addons")]

BATCH, MICRO_BATCH, UPDATES = 24, 4, 20
KERAS_NAME = keras_private.name_of_keras()


def needs(package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: tools/test.sh installs it")


def keras_library():
    return keras_private.keras.optimizers


def official():
    """tf-models-official's optimizers; they are of tf_keras, or of Keras 2 on TensorFlow 2.15."""
    needs("official")
    from official.modeling.optimization.lamb import LAMB
    from official.modeling.optimization.lars import LARS
    from official.modeling.optimization.legacy_adamw import AdamWeightDecay

    return SimpleNamespace(LARS=LARS, LAMB=LAMB, AdamWeightDecay=AdamWeightDecay)


def addons():
    needs("tensorflow_addons")
    if keras_private.KERAS_3:
        pytest.skip("TensorFlow Addons cannot be imported under Keras 3: TF_USE_LEGACY_KERAS=1")
    enable_tensorflow_addons()
    import tensorflow_addons

    return tensorflow_addons.optimizers


# ---- theirs inside the callback


@dataclass(frozen=True)
class Other:
    """An optimizer that is not ours; ``options`` turn on what it has of clipping, decay and exclusions."""

    library: Callable[[], Any]
    kind: str
    arguments: dict
    tolerance: float = 1e-6
    options: dict = field(default_factory=dict)
    exclude: tuple[str, ...] = ()

    def make(self, with_options):
        optimizers = self.library()
        if not hasattr(optimizers, self.kind):
            pytest.skip(f"{KERAS_NAME} has no {self.kind}")
        made = getattr(optimizers, self.kind)(**self.arguments, **(self.options if with_options else {}))
        if not isinstance(made, accepted()):
            pytest.skip(f"{type(made).__module__}.{self.kind} is an optimizer of tf_keras, not of {KERAS_NAME}")
        if with_options and self.exclude:
            made.exclude_from_weight_decay(var_names=list(self.exclude))
        return made


def accepted():
    """What ``compile`` takes."""
    kinds = keras_private.keras.optimizers
    return (kinds.Optimizer,) if keras_private.KERAS_3 else (kinds.Optimizer, kinds.legacy.Optimizer)


BIASES_AND_NORMS = ("bias", "norm")
EXCLUSIONS = {"exclude_from_weight_decay": ["bias", "gamma"], "exclude_from_layer_adaptation": ["bias", "norm"]}
OTHERS = {
    "keras_sgd": Other(
        keras_library,
        "SGD",
        {"learning_rate": 0.05, "momentum": 0.9},
        options={"nesterov": True, "global_clipnorm": 0.3, "weight_decay": 0.1},
        exclude=BIASES_AND_NORMS,
    ),
    "keras_adam": Other(
        keras_library,
        "Adam",
        {"learning_rate": 5e-3},
        tolerance=1e-5,
        options={"clipnorm": 0.2, "amsgrad": True, "weight_decay": 0.3},
        exclude=BIASES_AND_NORMS,
    ),
    "keras_adamw": Other(
        keras_library,
        "AdamW",
        {"learning_rate": 5e-3, "weight_decay": 0.1},
        tolerance=1e-5,
        options={"clipvalue": 0.05},
        exclude=BIASES_AND_NORMS,
    ),
    "keras_lamb": Other(
        keras_library,
        "Lamb",
        {"learning_rate": 5e-3},
        tolerance=1e-5,
        options={"global_clipnorm": 0.3, "weight_decay": 0.3},
        exclude=BIASES_AND_NORMS,
    ),
    "official_lars": Other(
        official,
        "LARS",
        {"learning_rate": 1.0, "momentum": 0.9, "eeta": 0.02},
        options={"weight_decay_rate": 0.1, "nesterov": True, "clipnorm": 0.2, **EXCLUSIONS},
    ),
    "official_lamb": Other(
        official,
        "LAMB",
        {"learning_rate": 5e-3},
        tolerance=1e-5,
        options={"weight_decay_rate": 0.3, "global_clipnorm": 0.3, **EXCLUSIONS},
    ),
    "official_adam_weight_decay": Other(
        official,
        "AdamWeightDecay",
        {"learning_rate": 5e-3},
        tolerance=1e-5,
        options={
            "weight_decay_rate": 0.3,
            "gradient_clip_norm": 0.3,
            "exclude_from_weight_decay": ["bias", "norm"],
        },
    ),
    "addons_lamb": Other(
        addons,
        "LAMB",
        {"learning_rate": 5e-3},
        tolerance=1e-5,
        options={"weight_decay": 0.3, "global_clipnorm": 0.3, **EXCLUSIONS},
    ),
}


def normalised(keras):
    k = keras.layers
    return keras.Sequential(
        [
            keras.Input((cases.FEATURES,)),
            k.Dense(8, activation="tanh", name="first"),
            k.LayerNormalization(name="norm"),
            k.Dense(cases.CLASSES, name="second"),
        ]
    )


CASE = cases.Case(normalised)


@pytest.fixture(scope="module")
def plain(tf):
    """``plain(name, with_options)``: weights after Keras's own ``fit`` on the large batch."""
    trained = {}

    def weights(name, with_options):
        if (name, with_options) not in trained:
            model = cases.compiled(tf.keras, CASE, OTHERS[name].make(with_options))
            cases.fit(model, CASE.data(UPDATES * BATCH), batch_size=BATCH)
            trained[name, with_options] = model
        return trained[name, with_options]

    return weights


@pytest.mark.parametrize("with_options", [False, True], ids=["plain", "options"])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("name", OTHERS)
def test_accumulated_steps_are_those_of_plain_fit(tf, strategies, plain, name, replicas, with_options):
    expected = plain(name, with_options)
    with strategies(replicas).scope():
        model = cases.compiled(tf.keras, CASE, OTHERS[name].make(with_options))
    adaptive = sg.AdaptiveBatch(sg.FixedBatch(BATCH))
    cases.fit(model, CASE.data(UPDATES * BATCH), batch_size=MICRO_BATCH * replicas, callbacks=[adaptive])
    assert [r.micro_steps for r in adaptive.history] == [BATCH // (MICRO_BATCH * replicas)] * UPDATES
    cases.assert_same_weights(model, expected, OTHERS[name].tolerance)


@pytest.mark.parametrize("name", OTHERS)
def test_the_options_matter(plain, name):
    """Each of them alone is the libraries' business; that none of it is lost in the callback is ours."""
    pairs = zip(plain(name, False).get_weights(), plain(name, True).get_weights(), strict=True)
    assert max(np.abs(a - b).max() for a, b in pairs) > 1e-3


@pytest.mark.parametrize("option", ["gradient_clip_norm", "weight_decay_rate", "exclude_from_weight_decay"])
def test_every_option_of_the_optimizer_of_bert_matters(tf, plain, option):
    other = OTHERS["official_adam_weight_decay"]
    options = {**other.options, option: {"gradient_clip_norm": 0.0, "weight_decay_rate": 0.0}.get(option)}
    without = cases.compiled(tf.keras, CASE, Other(other.library, other.kind, other.arguments, options=options).make(True))
    cases.fit(without, CASE.data(UPDATES * BATCH), batch_size=BATCH)
    pairs = zip(without.get_weights(), plain("official_adam_weight_decay", True).get_weights(), strict=True)
    assert max(np.abs(a - b).max() for a, b in pairs) > 1e-3


@pytest.mark.parametrize("kind", ["Lookahead", "MovingAverage", "SWA"])
def test_a_wrapper_is_refused(tf, kind):
    """The rate is in the optimizer inside it, which takes the step."""
    wrapper = getattr(addons(), kind)(tf.keras.optimizers.legacy.SGD(0.1))
    model = cases.compiled(tf.keras, CASE, wrapper)
    before = model.get_weights()
    with pytest.raises(ValueError, match=f"{kind} holds no learning rate"):
        cases.fit(model, CASE.data(BATCH), batch_size=MICRO_BATCH, callbacks=[sg.AdaptiveBatch(sg.FixedBatch(BATCH))])
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)


# ---- ours against theirs

STEPS = 50


def steps_of_theirs(tf, optimizer, start, gradients):
    """Weights after all steps, on plain variables that have the names of the layers: so theirs runs beside any Keras."""
    variables = [tf.Variable(value, name=name) for value, name in zip(start, LAYERS, strict=True)]
    for row in gradients:
        optimizer.apply_gradients([(tf.constant(g), v) for g, v in zip(row, variables, strict=True)])
    return arrays(variables)


def steps_of_ours(tf, optimizer, variables, gradients, transform=None):
    optimizer.build(variables)

    @tf.function
    def step(row):
        row = row if transform is None else transform(row, variables)
        optimizer.apply_gradients(zip(row, variables, strict=True))

    for row in gradients:
        step([tf.constant(g) for g in row])
    return arrays(variables)


def assert_same_steps(tf, ours, theirs, transform=None):
    """Fifty steps of both from the same weights on the same gradients, those of ours transformed."""
    variables = layers(tf).trainable_variables
    start, gradients = arrays(variables), random_gradients(variables, STEPS)
    expected = steps_of_theirs(tf, theirs, start, gradients)
    now = steps_of_ours(tf, ours, variables, gradients, transform)
    for a, b, name in zip(now, expected, LAYERS, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6, err_msg=name)
    assert [np.abs(a - b).max() > 1e-3 for a, b in zip(now, start, strict=True)].count(True) >= 5


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_is_that_of_tf_models(tf, nesterov):
    """Where a layer both decays and is adapted, theirs divides by |g + d w|, ours as the paper does by |g| + d |w|.

    So here the kernels are adapted and do not decay, all else decays and is not adapted.
    """
    theirs = official().LARS(
        1.0,
        momentum=0.8,
        weight_decay_rate=0.05,
        eeta=0.02,
        nesterov=nesterov,
        exclude_from_weight_decay=["kernel"],
        exclude_from_layer_adaptation=["bias", "norm"],
    )
    ours = sg.LARS(
        1.0,
        momentum=0.8,
        weight_decay=0.05,
        trust_coefficient=0.02,
        epsilon=0.0,
        nesterov=nesterov,
        exclude_from_decay=["kernel"],
        exclude_from_adaptation=["bias", "norm"],
    )
    assert_same_steps(tf, ours, theirs)


def test_lars_on_decayed_gradients_is_that_of_tf_models(tf):
    """With ``sg.L2`` in the place of ``weight_decay`` the norm is theirs, |g + d w|."""
    decay, exclude, unadapted = 0.05, ["bias", "beta"], ["bias", "norm"]
    theirs = official().LARS(
        1.0, weight_decay_rate=decay, eeta=0.02, exclude_from_weight_decay=exclude, exclude_from_layer_adaptation=unadapted
    )
    ours = sg.LARS(1.0, trust_coefficient=0.02, exclude_from_adaptation=unadapted)
    coupled = sg.L2(decay, exclude)
    assert_same_steps(tf, ours, theirs, coupled)


@pytest.mark.parametrize(
    ("library", "decay"), [(official, "weight_decay_rate"), (addons, "weight_decay")], ids=["official", "addons"]
)
@pytest.mark.parametrize(
    ("undecayed", "unadapted"),
    [(["bias", "norm"], ["bias", "norm"]), (["gamma"], ["second", "bias"]), (["nothing"], ["nothing"])],
    ids=["the_same", "others", "none"],
)
def test_lamb_is_theirs(tf, library, decay, undecayed, unadapted):
    """An empty list would mean something else to theirs: not adapted is what does not decay."""
    theirs = library().LAMB(
        5e-3,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        exclude_from_weight_decay=undecayed,
        exclude_from_layer_adaptation=unadapted,
        **{decay: 0.1},
    )
    ours = sg.LAMB(
        5e-3,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        weight_decay=0.1,
        exclude_from_decay=undecayed,
        exclude_from_adaptation=unadapted,
    )
    assert_same_steps(tf, ours, theirs)
