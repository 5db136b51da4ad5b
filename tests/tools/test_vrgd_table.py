"""The table trains each line three times, the third at the rate times what the second has measured."""

import itertools
import subprocess

import pytest

from configs.experiment import Experiment
from models.tasks import Cifar10
from tests.tools.command_line import refused
from tests.tools.finished_trainings import Trainings
from tools import train, trainings, vrgd_table

pytestmark = pytest.mark.one_keras

# What a config of the CIFAR-10 table has.
L2 = 5e-4
# A task that is judged by something else, and may know the best that can be reached; the folder of its data has to be there.
CLICKS = """
import dataclasses
from configs.quickstart_digits import get_config as digits
from models.tasks import Digits

class Clicks(Digits):
    headline = "auc"
    higher_is_better = {higher_is_better}

    def check_data(self, data_dir):
        if not (data_dir and data_dir.is_dir()):
            raise ValueError(f"no clicks in {{data_dir}}")

    def ceiling(self, data_dir):
        return float((data_dir / "ceiling").read_text()) if (data_dir / "ceiling").is_file() else None

def get_config():
    return dataclasses.replace(digits(), task=Clicks(), optimizer="sgd", learning_rate=0.75)
"""


class Measured(Trainings):
    """Of accuracies that rise from training to training; those with VRGD have measured a multiplier."""

    def __init__(self, multiplier=0.5):
        super().__init__()
        self.multiplier = multiplier

    def __call__(self, command, check):
        name = command[command.index("--output") + 1].rpartition("/")[2]
        measured = {"vrgd_multiplier": self.multiplier} if name.endswith("_vrgd") else {}
        accuracy = (len(self.commands) + 1) / 10
        measured |= {"accuracy": accuracy, "auc": accuracy + 0.012345}
        self.summaries[name] = {"updates": 74 + len(self.commands), "seconds": 7.4, **measured}
        super().__call__(command, check)


@pytest.fixture
def started(monkeypatch):
    found = Measured()
    monkeypatch.setattr(trainings.subprocess, "run", found)
    return found


def run(output, *arguments):
    vrgd_table.main(["cifar10_vrgd_small", "--output", str(output), *arguments])


@pytest.fixture
def clicks(tmp_path):
    """``clicks(higher_is_better)``: the arguments for a table of clicks."""

    def made(higher_is_better=True):
        config = tmp_path / "clicks.py"
        config.write_text(CLICKS.format(higher_is_better=higher_is_better), encoding="utf-8")
        (tmp_path / "data").mkdir()
        return [str(config), "--output", str(tmp_path / "table"), "--data-dir", str(tmp_path / "data")]

    return made


def experiments(started, config="cifar10_vrgd_small"):
    """Name and experiment of each training."""
    config = train.load_config(config)
    return {name: train.apply_overrides(config, settings) for name, settings in started.settings}


def test_a_line_is_three_trainings(started, tmp_path, capsys):
    run(tmp_path, "--optimizers", "lars", "--batch-sizes", "4096", "--set", "epochs=2")
    common = ["epochs=2", "optimizer=lars", "policy=FixedBatch(batch_size=4096)", "l2=0.0", f"weight_decay={L2}"]
    common.append("vrgd_gamma=0.0")
    assert started.settings == [
        ("lars_4096_plain", [*common, "learning_rate=5.0"]),
        ("lars_4096_vrgd", [*common, "learning_rate=5.0", "vrgd_gamma=0.1"]),
        ("lars_4096_shorter", [*common, "learning_rate=2.5"]),
    ]
    header, line = (tmp_path / "table.txt").read_text().splitlines()
    assert capsys.readouterr().out.splitlines()[-2:] == [header, line]
    assert header.split() == ["optimizer", "batch", "updates", "plain", "VRGD", "shorter", "multiplier", "seconds"]
    assert line.split() == ["lars", "4,096", "75", "10.0", "%", "20.0", "%", "30.0", "%", "0.50", "7", "7", "7"]


def test_columns_stand_below_each_other(started, tmp_path):
    run(tmp_path)
    lines = (tmp_path / "table.txt").read_text().splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        [optimizer, size] for optimizer in ("momentum", "lars") for size in ("256", "1,024", "4,096")
    ]
    assert len({len(line) for line in lines[1:]}) == 1
    # The columns of numbers end where their names do, and the accuracies begin where theirs do.
    header = lines[0]
    for name in ("batch", "updates", "multiplier"):
        end = header.index(name) + len(name)
        assert all(line[end - 1].isdigit() and line[end] == " " for line in lines[1:]), name
    for name in ("plain", "VRGD", "shorter"):
        start = header.index(name)
        assert all("%" in line[start : start + 7] for line in lines[1:]), name


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "lamb", "lars"])
@pytest.mark.parametrize(("given", "decay"), [([], L2), (["--set", "l2=0.25"], 0.25)], ids=str)
def test_the_decay_goes_to_where_the_optimizer_has_it(started, tmp_path, optimizer, given, decay):
    run(tmp_path, "--optimizers", optimizer, "--batch-sizes", "256", *given)
    by_itself = optimizer in ("lamb", "lars")
    for experiment in experiments(started).values():
        assert isinstance(experiment, Experiment) and experiment.optimizer == optimizer
        assert (experiment.l2, experiment.weight_decay) == ((0.0, decay) if by_itself else (decay, 0.0))


def test_only_the_middle_training_has_vrgd(started, tmp_path):
    run(tmp_path, "--optimizers", "adam", "--batch-sizes", "256,1024")
    gammas = {name: experiment.vrgd_gamma for name, experiment in experiments(started).items()}
    assert gammas == {
        f"adam_{size}_{kind}": 0.1 * (kind == "vrgd") for size in (256, 1024) for kind in ("plain", "vrgd", "shorter")
    }


def test_rates_may_be_given(started, tmp_path):
    run(tmp_path, "--optimizers", "momentum,lars", "--batch-sizes", "256", "--rates", "lars=3,adam=0.5")
    rates = {name: experiment.learning_rate for name, experiment in experiments(started).items()}
    assert rates == {
        "momentum_256_plain": 0.1, "momentum_256_vrgd": 0.1, "momentum_256_shorter": 0.05,
        "lars_256_plain": 3.0, "lars_256_vrgd": 3.0, "lars_256_shorter": 1.5,
    }  # fmt: skip


def test_the_optimizer_of_the_config_has_its_rate(started, tmp_path, clicks):
    arguments = [*clicks(), "--batch-sizes", "64"]
    vrgd_table.main([*arguments, "--optimizers", "sgd,momentum"])
    config = str(tmp_path / "clicks.py")
    rates = {name: experiment.learning_rate for name, experiment in experiments(started, config).items()}
    assert rates == {
        "sgd_64_plain": 0.75, "sgd_64_vrgd": 0.75, "sgd_64_shorter": 0.375,
        "momentum_64_plain": 0.1, "momentum_64_vrgd": 0.1, "momentum_64_shorter": 0.05,
    }  # fmt: skip
    started.commands.clear()
    vrgd_table.main([*arguments, "--optimizers", "sgd", "--rates", "sgd=0.5"])
    assert [experiment.learning_rate for experiment in experiments(started, config).values()] == [0.5, 0.5, 0.25]
    assert {experiment.optimizer for experiment in experiments(started, config).values()} == {"sgd"}


def test_sgd_has_a_rate_where_the_config_has_another_optimizer(started, tmp_path):
    run(tmp_path, "--optimizers", "sgd", "--batch-sizes", "256")
    assert [experiment.learning_rate for experiment in experiments(started).values()] == [0.01, 0.01, 0.005]


@pytest.mark.parametrize("ceiling", [None, 0.8], ids=str)
def test_what_is_no_accuracy_is_shown_by_its_name_and_beside_its_ceiling(started, tmp_path, clicks, ceiling):
    arguments = clicks()
    if ceiling:
        (tmp_path / "data" / "ceiling").write_text(str(ceiling))
    vrgd_table.main([*arguments, "--optimizers", "sgd", "--batch-sizes", "64,1024"])
    names = "optimizer  batch  updates  plain auc  VRGD auc  shorter auc  "
    header, *lines = (tmp_path / "table" / "table.txt").read_text().splitlines()
    assert header == names + ("ceiling  " if ceiling else "") + "multiplier  seconds"
    ceilings = ["0.8000"] if ceiling else []
    assert [line.split() for line in lines] == [
        ["sgd", "64", "75", "0.1123", "0.2123", "0.3123", *ceilings, "0.50", "7", "7", "7"],
        ["sgd", "1,024", "78", "0.4123", "0.5123", "0.6123", *ceilings, "0.50", "7", "7", "7"],
    ]
    # They begin where their names do.
    places = [header.index(name) for name in ("plain auc", "VRGD auc", "shorter auc", *(["ceiling"] if ceiling else []))]
    assert all(line[place - 2 : place] == "  " and line[place] == "0" for line in lines for place in places)


def test_an_accuracy_may_have_a_ceiling(started, tmp_path, monkeypatch):
    monkeypatch.setattr(Cifar10, "ceiling", lambda self, data_dir: 0.955)
    run(tmp_path, "--optimizers", "lars", "--batch-sizes", "4096")
    header, line = (tmp_path / "table.txt").read_text().splitlines()
    assert header == "optimizer  batch  updates  plain    VRGD     shorter  ceiling  multiplier  seconds"
    assert line == "lars       4,096       75   10.0 %   20.0 %   30.0 %   95.5 %        0.50      7      7      7"


def test_what_is_complete_is_kept(started, tmp_path):
    run(tmp_path, "--optimizers", "lars", "--batch-sizes", "256")
    first = (tmp_path / "table.txt").read_text()
    run(tmp_path, "--optimizers", "lars", "--batch-sizes", "256,1024")
    names = [name for name, _ in started.settings]
    assert names == [f"lars_{size}_{kind}" for size, kind in itertools.product((256, 1024), ("plain", "vrgd", "shorter"))]
    assert (tmp_path / "table.txt").read_text().startswith(first)


def test_without_a_multiplier_there_is_no_third_training(monkeypatch, tmp_path, capsys):
    started = Measured(multiplier=None)
    monkeypatch.setattr(trainings.subprocess, "run", started)
    with pytest.raises(SystemExit):
        run(tmp_path, "--optimizers", "lars", "--batch-sizes", "256")
    error = capsys.readouterr().err
    assert f"{tmp_path}/lars_256_vrgd has measured no multiplier" in error and error.count("\n") == 1
    assert len(started.commands) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizers", "lars,adamw"], "--optimizers adamw: expected some of sgd, momentum, adam, lamb, lars"),
        (["--batch-sizes", "256,many"], "--batch-sizes many: expected whole numbers, such as 256,1024"),
        (["--batch-sizes", "256,"], "--batch-sizes : expected whole numbers"),
        (["--batch-sizes", "256,0"], "batch_size"),
        (["--rates", "adamw=1"], "--rates adamw=1: expected sgd, momentum, adam, lamb, lars, each with =RATE"),
        (["--rates", "lars"], "--rates lars: expected sgd, momentum, adam, lamb, lars, each with =RATE"),
        (["--rates", "lars=-1"], "learning_rate=-1.0"),
        (["--set", "epoch=1"], "no field epoch; did you mean epochs"),
        (["--set", "policy.batch_size=512"], "--set policy.batch_size=512: the table sets policy, optimizer"),
        (["--set", "learning_rate=1", "--set", "vrgd_gamma=0.2"], "--set learning_rate=1, vrgd_gamma=0.2: the table sets"),
        (["--data-dir", "nowhere"], "no CIFAR-10 in nowhere"),
        (["--set", "weight_decay=0.1"], "weight_decay=0.1: momentum has none"),
    ],
    ids=str,
)
def test_arguments_are_refused_before_the_first_training(started, tmp_path, capsys, arguments, message):
    assert message in refused(vrgd_table.main, capsys, "cifar10_vrgd_small", "--output", tmp_path, *arguments)
    assert started.commands == []


def test_an_experiment_that_is_judged_by_a_loss_is_refused(started, tmp_path, capsys, clicks):
    error = refused(vrgd_table.main, capsys, "bert_large_pretrain_vrgd", "--output", tmp_path)
    assert "bert_large_pretrain_vrgd is judged by masked_word_nats: expected a measure of which more is better" in error
    assert "is judged by auc: expected a measure of which more" in refused(vrgd_table.main, capsys, *clicks(False))
    error = refused(vrgd_table.main, capsys, "cifar10_vrgd_smal", "--output", tmp_path)
    assert "no experiment cifar10_vrgd_smal; did you mean cifar10_vrgd_small" in error
    assert started.commands == []


def test_what_the_task_does_not_find_is_said_before_the_first_training(started, tmp_path, capsys, clicks):
    arguments = clicks()
    (tmp_path / "data" / "ceiling").write_text("high")
    assert "could not convert string to float: 'high'" in refused(vrgd_table.main, capsys, *arguments)
    assert "no clicks in None" in refused(vrgd_table.main, capsys, *arguments[:-2])
    assert started.commands == []


def test_a_training_that_fails_ends_the_command_in_one_line(monkeypatch, tmp_path, capsys):
    def fail(command, check):
        raise subprocess.CalledProcessError(2, command)

    monkeypatch.setattr(trainings.subprocess, "run", fail)
    with pytest.raises(SystemExit) as exit_:
        run(tmp_path)
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and error.count("\n") == 1 and "exit status 2" in error
