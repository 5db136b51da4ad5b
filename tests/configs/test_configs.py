"""Every file in configs/ is a readable experiment."""

import ast
import dataclasses
import importlib
import json
from pathlib import Path

import pytest

import tf_simigrad as sg
from configs.experiment import Experiment

pytestmark = pytest.mark.one_keras

FOLDER = Path(__file__).resolve().parents[2] / "configs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "experiment"))
VALID = {
    "name": "a",
    "task": "digits",
    "policy": sg.FixedBatch(batch_size=32),
    "epochs": 1,
    "micro_batch_size": 16,
    "reference_batch_size": 32,
    "learning_rate": 0.1,
}


def test_there_are_experiments():
    assert {"quickstart_digits", "cifar10_resnet8_simigrad", "cifar10_resnet20_simigrad"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_config_is_an_experiment_of_its_own_name(name):
    experiment = importlib.import_module(f"configs.{name}").get_config()
    assert isinstance(experiment, Experiment)
    assert experiment.name == name
    assert json.loads(json.dumps(experiment.as_dict()))["policy"]["type"] == type(experiment.policy).__name__


@pytest.mark.parametrize("name", NAMES)
def test_a_config_says_where_it_comes_from_and_how_to_run_it(name):
    header = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8")))
    for word in ("Paper:", "Command:", "Hardware:", f"tools.train {name}"):
        assert word in header


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "mnist"}, "task='mnist': expected one of digits, cifar10"),
        ({"schedule": "step"}, "schedule='step'"),
        ({"statistic": "cosine"}, "statistic='cosine'"),
        ({"learning_rate_rule": "cube"}, "learning_rate_rule='cube'"),
        ({"epochs": 0}, "epochs=0: expected 1 or more"),
        ({"micro_batch_size": 0}, "micro_batch_size=0"),
        ({"max_updates": -1}, "max_updates=-1: expected 0 or more"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"warmup_epochs": 1.0}, "warmup_epochs=1.0: expected fewer than epochs=1"),
        ({"depth": 9}, "depth=9"),
        ({"policy": "SimiGrad"}, "policy='SimiGrad': expected a policy"),
    ],
)
def test_what_cannot_work_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Experiment(**{**VALID, **change})


def test_an_experiment_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Experiment(**VALID).epochs = 3
