"""Every file in configs/ is a readable experiment."""

import ast
import dataclasses
import importlib
import json
from pathlib import Path

import pytest

import tf_simigrad as sg
from configs.experiment import Experiment
from models import bert
from models.tasks import BertPretraining, Cifar10, Digits, Squad
from models.tasks.bert import ENCODERS

pytestmark = pytest.mark.one_keras

FOLDER = Path(__file__).resolve().parents[2] / "configs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "experiment"))
VALID = {
    "name": "a",
    "task": Digits(),
    "policy": sg.FixedBatch(batch_size=32),
    "epochs": 1,
    "micro_batch_size": 16,
    "reference_batch_size": 32,
    "learning_rate": 0.1,
}


def test_there_are_experiments():
    assert {"quickstart_digits", "cifar10_simigrad_small", "cifar10_simigrad"} <= set(NAMES)


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
        ({"task": "mnist"}, "task='mnist': expected one of models.tasks"),
        ({"schedule": "step"}, "schedule='step'"),
        ({"schedule": "steps"}, "schedule='steps', step_epochs=\\(\\): one needs the other"),
        ({"step_epochs": (1,)}, "schedule='cosine', step_epochs=\\(1,\\): one needs the other"),
        ({"epochs": 9, "schedule": "steps", "step_epochs": (5, 3)}, "expected to rise between warm-up and epochs=9"),
        ({"epochs": 9, "schedule": "steps", "step_epochs": (9,)}, "expected to rise between warm-up and epochs=9"),
        ({"optimizer": "lamb", "l2": 1e-4}, "l2=0.0001: lamb decays by itself; set weight_decay"),
        ({"weight_decay": 1e-4}, "weight_decay=0.0001: momentum has none; set l2"),
        ({"optimizer": "sgd", "weight_decay": 1e-4}, "weight_decay=0.0001: sgd has none; set l2"),
        ({"optimizer": "SGD"}, "optimizer='SGD': expected one of sgd, momentum, adam"),
        ({"vrgd_groups": "devices"}, "vrgd_groups='devices'"),
        ({"examples_per_epoch": -1}, "examples_per_epoch=-1: expected 0 or more"),
        ({"statistic": "cosine"}, "statistic='cosine'"),
        ({"learning_rate_rule": "cube"}, "learning_rate_rule='cube'"),
        ({"epochs": 0}, "epochs=0: expected 1 or more"),
        ({"micro_batch_size": 0}, "micro_batch_size=0"),
        ({"max_updates": -1}, "max_updates=-1: expected 0 or more"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"warmup_epochs": 1.0}, "warmup_epochs=1.0: expected fewer than epochs=1"),
        ({"policy": "SimiGrad"}, "policy='SimiGrad': expected a policy"),
    ],
)
def test_what_cannot_work_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Experiment(**{**VALID, **change})


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_what_does_not_decay_by_itself_may_have_a_penalty(optimizer):
    assert Experiment(**VALID, optimizer=optimizer, l2=5e-4).l2 == 5e-4


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (Cifar10, {"network": "resnet9"}, "resnet9"),
        (Cifar10, {"width": -1}, "width=-1"),
        (BertPretraining, {"encoder": "huge"}, "encoder='huge': expected one of tiny, mini"),
        (BertPretraining, {"length": 513}, "length=513: expected 8 to 512"),
        (BertPretraining, {"predictions": 128}, "predictions=128: expected 1 to 127"),
        (Squad, {"encoder": ""}, "encoder=''"),
        (Squad, {"length": 64}, "length=64: expected 96 to 512"),
    ],
)
def test_settings_of_a_task_that_cannot_work_are_refused(task, settings, message):
    with pytest.raises(ValueError, match=message):
        task(**settings)


def test_a_config_knows_the_encoders_without_building_one():
    assert tuple(bert.SIZES) == ENCODERS


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_comes_back_from_its_json(name):
    experiment = importlib.import_module(f"configs.{name}").get_config()
    assert Experiment.from_dict(json.loads(json.dumps(experiment.as_dict()))) == experiment


@pytest.mark.parametrize("change", [{"depth": 8}, {"task": {"type": "Mnist"}}, {"policy": {"type": "FixedBatch", "size": 3}}])
def test_an_experiment_of_another_version_is_refused(change):
    with pytest.raises(ValueError, match="no experiment of this version"):
        Experiment.from_dict({**Experiment(**VALID).as_dict(), **change})


def test_every_paper_has_its_small_twins():
    papers = {"cifar10_simigrad", "cifar10_vrgd", "bert_large_pretrain", "bert_large_pretrain_phase2",
              "bert_large_pretrain_vrgd", "bert_squad"}  # fmt: skip
    assert papers | {f"{name}_small" for name in papers} <= set(NAMES)


def test_an_experiment_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Experiment(**VALID).epochs = 3
