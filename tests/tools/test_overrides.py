"""--set reaches every field, and says what is wrong."""

import dataclasses

import pytest

import tf_simigrad as sg
from configs.quickstart_digits import get_config
from models.tasks import Cifar10, Digits
from tools.overrides import NESTED, apply_overrides, convert, parse_call

pytestmark = pytest.mark.one_keras


def test_no_override_changes_nothing():
    assert apply_overrides(get_config(), []) == get_config()


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(get_config()) if field.name not in NESTED])
def test_every_field_is_reached_with_its_own_value(field):
    experiment = get_config()
    assert apply_overrides(experiment, [f"{field}={getattr(experiment, field)}"]) == experiment


def test_fields_are_replaced():
    changed = apply_overrides(get_config(), ["epochs=3", "learning_rate=1", "deterministic=True", "schedule=constant"])
    assert (changed.epochs, changed.learning_rate, changed.deterministic, changed.schedule) == (3, 1.0, True, "constant")
    assert isinstance(changed.learning_rate, float)


def test_fields_of_the_policy_are_replaced_together():
    changed = apply_overrides(
        get_config(), ["policy.min_batch_size=1024", "policy.max_batch_size=4_096", "policy.target_similarity=0.3"]
    )
    assert changed.policy == sg.SimiGrad(target_similarity=0.3, min_batch_size=1024, max_batch_size=4096)


def test_settings_of_the_task_and_a_whole_task_are_replaced():
    assert apply_overrides(get_config(), ["task=Cifar10(network='resnet8')", "task.width=4"]).task == Cifar10("resnet8", 4)
    assert apply_overrides(get_config(), ["task=Digits()"]).task == Digits()


def test_a_tuple_is_replaced():
    changed = apply_overrides(get_config(), ["schedule=steps", "step_epochs=(3,9)"])
    assert changed.step_epochs == (3, 9)


def test_a_whole_policy_is_replaced_and_then_its_fields():
    changed = apply_overrides(get_config(), ["policy.batch_size=64", "policy=FixedBatch(batch_size=128)"])
    assert changed.policy == sg.FixedBatch(batch_size=64)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("FixedBatch(batch_size=128)", sg.FixedBatch(batch_size=128)),
        (
            "NoiseScale(target_similarity=0.2, min_batch_size=64, max_batch_size=512, initial_batch_size=None)",
            sg.NoiseScale(target_similarity=0.2, min_batch_size=64, max_batch_size=512),
        ),
    ],
)
def test_policies(text, policy):
    assert parse_call("policy", text) == policy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("128", "expected SimiGrad, NoiseScale, FixedBatch with literal"),
        ("FixedBatch(", "expected SimiGrad, NoiseScale, FixedBatch with literal"),
        ("FixedBatch(128)", "with literal keyword arguments"),
        ("FixedBatch(**{'batch_size': 128})", "with literal keyword arguments"),
        ("sg.FixedBatch(batch_size=128)", "with literal keyword arguments"),
        ("FixBatch(batch_size=128)", "no policy FixBatch; did you mean FixedBatch?"),
        ("Policy()", "no policy Policy"),
        ("FixedBatch(batchsize=128)", "FixedBatch has no batchsize; did you mean batch_size?"),
        ("FixedBatch()", "batch_size"),
        ("FixedBatch(batch_size='128')", "expected int"),
        ("FixedBatch(batch_size=__import__('os').getpid())", "policy.batch_size=__import__.*expected int"),
        ("FixedBatch(batch_size=0)", "batch_size=0"),
    ],
)
def test_what_is_no_policy_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_call("policy", text)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("epochs", "--set epochs: expected name=value"),
        ("epoch=3", "no field epoch; did you mean epochs"),
        ("zzz=3", "no field zzz; known: dense_table_elements, deterministic, "),
        ("policy.target=0.3", "no field policy.target; did you mean policy.?target_similarity|target_similarity"),
        ("epochs=3.0", "epochs=3.0: expected int"),
        ("epochs=True", "epochs=True: expected int"),
        ("epochs=three", "epochs=three: expected int"),
        ("learning_rate=fast", "learning_rate=fast: expected float"),
        ("deterministic=2", "deterministic=2: expected bool"),
        ("task=mnist", "task=mnist: expected Digits, Cifar10, BertPretraining, Squad, Dlrm, ImageNet with literal"),
        ("task=Mnist()", "no task Mnist; known: BertPretraining"),
        ("task.network=resnet8", "no field task.network"),
        ("step_epochs=3", "step_epochs=3: expected tuple"),
        ("policy.target_similarity=2", "target_similarity=2"),
    ],
)
def test_what_does_not_fit_is_refused(assignment, message):
    with pytest.raises(ValueError, match=message):
        apply_overrides(get_config(), [assignment])


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("8_192", int, 8192),
        ("5e-4", float, 5e-4),
        ("none", int | None, None),
        ("12", int | None, 12),
        ("false", bool, False),
        ("1", bool, True),
        ("12", str, "12"),
        ("two words", str, "two words"),
    ],
)
def test_values(text, hint, value):
    converted = convert("a", text, hint)
    assert converted == value
    assert type(converted) is type(value)
