"""A run is read back from its folder, under the Keras that it was trained under."""

import json

import pytest

from tests.tools.command_line import refused
from tf_simigrad.compat import keras_private
from tools import evaluate, export, runs, train

KERAS = "keras3" if keras_private.KERAS_3 else "tf_keras"


@pytest.fixture(scope="module")
def run(tmp_path_factory, strategies):
    """Two updates on the digits."""
    from tools import experiment as runner

    output = tmp_path_factory.mktemp("run")
    experiment = train.apply_overrides(train.load_config("quickstart_digits"), ["max_updates=2", "epochs=1"])
    training = runner.build(experiment, strategies(1), experiment.task.load(None))
    train.prepare_output(runs.config_of(experiment, None, None), output, resume=False)
    runner.run(training, output, *runner.restore(training, output, False))
    return output


def test_it_is_what_was_trained(run):
    found = runs.read(run)
    assert found.experiment.name == "quickstart_digits" and found.keras == KERAS and found.data_dir is None
    assert found.weights == run / "weights" / "model"


@pytest.mark.parametrize("main", [evaluate.main, export.main])
def test_the_other_keras_is_refused(run, capsys, tmp_path, monkeypatch, main):
    other = {"keras3": "tf_keras", "tf_keras": "keras3"}[KERAS]
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", {"keras3": "0", "tf_keras": "1"}[KERAS])
    arguments = [run, *([tmp_path / "out"] if main is export.main else []), "--keras", other]
    with pytest.raises(SystemExit):
        main([str(argument) for argument in arguments])
    assert f"was trained under {KERAS}: the other Keras cannot read it; set --keras" in capsys.readouterr().err


def test_the_keras_of_the_run_is_the_default(run, monkeypatch, capsys):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", {"keras3": "1", "tf_keras": "0"}[KERAS])
    evaluate.main([str(run)])
    assert "accuracy" in capsys.readouterr().out


def test_measures_are_those_of_the_run(run):
    evaluate.main([str(run), "--batch-size", "7"])
    found = json.loads((run / "evaluation.json").read_text())
    assert found["accuracy"] == pytest.approx(json.loads((run / "summary.json").read_text())["accuracy"])
    assert found["examples"] == 360


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "holds no run: config.json missing"),
        ({"config.json": "{}"}, "this is no experiment of this version"),
        ({"config.json": None}, "has saved no weights yet"),
    ],
)
def test_what_is_no_run_is_one_line(run, tmp_path, capsys, change, message):
    for name, text in change.items():
        (tmp_path / name).write_text((run / name).read_text() if text is None else text)
    assert message in refused(evaluate.main, capsys, tmp_path)


def test_an_export_does_not_replace_what_is_no_model(run, tmp_path, capsys):
    (tmp_path / "letters.txt").write_text("")
    assert "exists and is no SavedModel" in refused(export.main, capsys, run, tmp_path)
