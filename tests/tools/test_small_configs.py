"""Every small config from end to end at smoke size: two updates on one replica and on two, resumed, judged, exported."""

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from models.tasks import Cifar10
from tf_simigrad.compat import keras_private
from tf_simigrad.report import history
from tools import check_saved_model, evaluate, export, initial_weights, prepare_data, runs, train

ROOT = Path(__file__).resolve().parents[2]
CIFAR = ("cifar10_simigrad_small", "cifar10_vrgd_small")
FIRST_PHASE = ("bert_large_pretrain_small", "bert_large_pretrain_vrgd_small")
BERT = (*FIRST_PHASE, "bert_large_pretrain_phase2_small", "bert_squad_small")
ONE_OF_EACH_NETWORK = (CIFAR[0], "bert_squad_small", "imagenet_resnet50_small", "dlrm_criteo_small")
IMAGENET, DLRM = ("imagenet_resnet50_small", "imagenet_resnet50_vrgd_small"), "dlrm_criteo_small"
needs_tf_keras = pytest.mark.skipif(keras_private.KERAS_3, reason="its models are tf_keras's")

# Each in the Keras that it is mostly run in: what the other one could change is tested by the digits, in test_train.
ALL = [
    *(pytest.param(name, marks=pytest.mark.one_keras) for name in CIFAR),
    *(pytest.param(name, marks=needs_tf_keras) for name in (*BERT, *IMAGENET, DLRM)),
]
# Two updates, of as little as the policy and the statistic allow.
FIXED = ["policy=FixedBatch(batch_size=16)", "micro_batch_size=4", "validation_batch_size=8", "validation_examples=16"]
SHORT = ["task.length=64", "task.predictions=10"]
TABLES = (*[50] * 24, 100, 200)
TINY = ["task.depth=10", "task.width=0.25", "task.image_size=32"]
SMOKE = {
    "cifar10_simigrad_small": ["policy=SimiGrad(target_similarity=0.2, min_batch_size=32, max_batch_size=64)",
                               "micro_batch_size=16", "validation_examples=32", "validation_batch_size=16", "max_updates=2"],
    "cifar10_vrgd_small": ["policy=FixedBatch(batch_size=64)", "micro_batch_size=8", "vrgd_gamma=0.1", "task.width=4",
                           "validation_examples=32", "validation_batch_size=16", "max_updates=2"],
    "bert_large_pretrain_small": [*FIXED, *SHORT,
                                  "policy=SimiGrad(target_similarity=0.1, min_batch_size=16, max_batch_size=16)",
                                  "examples_per_epoch=16", "epochs=2", "deterministic=true"],
    "bert_large_pretrain_vrgd_small": [*FIXED, *SHORT, "examples_per_epoch=32", "epochs=1", "precision=bfloat16"],
    "bert_large_pretrain_phase2_small": [*FIXED, "task.length=128", "task.predictions=20", "examples_per_epoch=32", "epochs=1"],
    "imagenet_resnet50_small": [*FIXED, *TINY, "policy=SimiGrad(target_similarity=0.2, min_batch_size=16, max_batch_size=16)",
                                "examples_per_epoch=16", "epochs=2"],
    "imagenet_resnet50_vrgd_small": [*FIXED, *TINY, "policy=FixedBatch(batch_size=32)", "examples_per_epoch=64", "epochs=1",
                                     "warmup_epochs=0.5", "precision=bfloat16"],
    # Two of its tables as rows.
    "dlrm_criteo_small": [*FIXED, "policy=FixedBatch(batch_size=32)", f"task.table_sizes={TABLES}", "dense_table_elements=1000",
                          "examples_per_epoch=32", "epochs=2", "validation_examples=100"],
    "bert_squad_small": [*FIXED, "task.encoder=tiny", "task.length=96", "task.stride=24", "examples_per_epoch=32", "epochs=1"],
}  # fmt: skip


def test_every_small_config_is_here():
    assert set(SMOKE) == {path.stem for path in (ROOT / "configs").glob("*_small.py")}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """``prepared(data_dir, config)``: the folder of data that a config is trained on, a small part of the real one."""
    made = {}

    def write_part(source, target, lines):
        with gzip.open(source, "rt", encoding="utf-8") as whole:
            target.write_text("".join(line for line, _ in zip(whole, range(lines), strict=False)), encoding="utf-8")
        return target

    def bert_data(data_dir, folder, length):
        text = write_part(data_dir / "text" / "books_valid.txt.gz", folder / "text.txt", 300)
        files = ["--text", text, "--validation-text", text, "--vocabulary", data_dir / "bert_vocab" / "vocab.txt"]
        sizes = ["--length", length, "--predictions", length * 20 // 128]
        made_by = ["--shards", 1, "--processes", 1, "--output", folder / "data"]
        prepare_data.main([str(part) for part in ["bert-pretraining", *files, *sizes, *made_by]])

    def squad_data(data_dir, folder):
        articles = json.loads(gzip.decompress((data_dir / "squad" / "dev-small.json.gz").read_bytes()))["data"]
        for article in articles:
            article["paragraphs"] = article["paragraphs"][:4]
        questions = folder / "squad.json"
        questions.write_text(json.dumps({"data": articles}))
        files = ["--train", questions, "--validation", questions, "--vocabulary", data_dir / "bert_vocab" / "vocab.txt"]
        sizes = ["--length", 96, "--stride", 24, "--shards", 2, "--output", folder / "data"]
        prepare_data.main([str(part) for part in ["squad", *files, *sizes]])

    def imagenet_data(data_dir, folder):
        written = ["--pixels", 32, "--examples", 64, "--validation-examples", 64, "--output", folder / "jpeg"]
        prepare_data.main([str(part) for part in ["cifar10-jpeg", "--data-dir", data_dir / "cifar10", *written]])
        splits = ["--train", folder / "jpeg" / "train", "--validation", folder / "jpeg" / "validation"]
        prepare_data.main([str(part) for part in ["imagenet", *splits, "--shards", 2, "--output", folder / "data"]])

    def click_data(folder):
        lines = ["--examples", 300, "--validation-examples", 100, "--largest-vocabulary", 40]
        prepare_data.main([str(part) for part in ["clicks", *lines, "--output", folder / "tsv"]])
        splits = ["--train", folder / "tsv" / "train.tsv", "--validation", folder / "tsv" / "validation.tsv"]
        made_by = ["--table-sizes", *TABLES, "--shards", 2, "--processes", 1, "--output", folder / "data"]
        prepare_data.main([str(part) for part in ["criteo", *splits, *made_by]])

    def prepare(data_dir, config):
        if config in CIFAR:
            return data_dir / "cifar10"
        of_bert = "squad" if "squad" in config else 128 if "phase2" in config else 64
        kind = of_bert if config in BERT else config.split("_")[0]
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(str(kind))
            match kind:
                case "imagenet":
                    imagenet_data(data_dir, made[kind])
                case "dlrm":
                    click_data(made[kind])
                case "squad":
                    squad_data(data_dir, made[kind])
                case _:
                    bert_data(data_dir, made[kind], kind)
        return made[kind] / "data"

    return prepare


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """``trained(config, data, strategy, ...)``: a run at smoke size; each is made once."""
    from tools import experiment as runner

    made, loaded = {}, {}

    def load(task, data):
        if not isinstance(task, Cifar10):
            return task.load(data)
        if data not in loaded:
            loaded[data] = task.load(data)
            # A few of its images: the rest would be shuffled and thrown away.
            loaded[data].train = tuple(array[:640] for array in loaded[data].train)
            loaded[data].examples = 640
        return loaded[data]

    def train_once(config, data, strategy, settings=(), start=None, resumed=None):
        key = (config, strategy.num_replicas_in_sync, tuple(settings), resumed)
        if key in made:
            return made[key]
        experiment = train.apply_overrides(train.load_config(config), [*SMOKE[config], *settings])
        experiment.task.check_data(data)
        output = tmp_path_factory.mktemp("run")
        if resumed is not None:
            shutil.copytree(resumed, output, dirs_exist_ok=True)
        training = runner.build(experiment, strategy, load(experiment.task, data))
        if start is not None:
            initial_weights.check(start)
            initial_weights.take(training.model, experiment.task, start)
        train.prepare_output(runs.config_of(experiment, data, start), output, resume=resumed is not None)
        runner.run(training, output, *runner.restore(training, output, resumed is not None), data_dir=data)
        made[key] = output
        return output

    return train_once


def run_of(config, replicas, data_dir, prepared, trained, strategies):
    """The run of a config; the second phase and SQuAD start from the first phase on one replica."""
    start = None
    if config in BERT and config not in FIRST_PHASE:
        first = FIRST_PHASE[0]
        start = trained(first, prepared(data_dir, first), strategies(1))
    return trained(config, prepared(data_dir, config), strategies(replicas), start=start)


@pytest.mark.parametrize(
    ("config", "replicas"),
    # On two replicas one config of each network: what the others differ in has tests of its own.
    [pytest.param(*p.values, n, marks=p.marks) for p in ALL for n in (1, 2) if n == 1 or p.values[0] in ONE_OF_EACH_NETWORK],
)
def test_two_updates_are_trained_and_exported(config, replicas, data_dir, prepared, trained, strategies):
    run = run_of(config, replicas, data_dir, prepared, trained, strategies)
    records = history.read_history(run / "history.csv")
    assert len([record for record in records if not record.skipped]) == 2
    assert json.loads((run / "summary.json").read_text())["traces"] == 1
    if replicas == 2:
        assert check_saved_model.main([str(run)]) == 0


@pytest.mark.parametrize("config", ALL)
def test_a_run_is_judged_and_exported_again(config, data_dir, prepared, trained, strategies, tmp_path, capsys):
    run = run_of(config, 1, data_dir, prepared, trained, strategies)
    capsys.readouterr()
    evaluate.main([str(run)])
    found = json.loads((run / "evaluation.json").read_text())
    headline = train.load_config(config).task.headline
    assert f"{headline} {found[headline]:.6g}" in capsys.readouterr().out
    # The newest weights are those that the run has judged at its end, in its own precision.
    judged = history.read_epochs(run / "epochs.csv")[-1]
    half = "precision=bfloat16" in SMOKE[config]
    assert found[headline] == pytest.approx(judged[f"val_{headline}"], rel=2.0**-8 if half else 1e-4)
    export.main([str(run), str(tmp_path / "model")])
    with (
        np.load(run / "saved_model" / check_saved_model.CHECK) as own,
        np.load(tmp_path / "model" / check_saved_model.CHECK) as again,
    ):
        assert set(own.files) == set(again.files)
        for name in own.files:
            np.testing.assert_allclose(again[name], own[name], atol=1e-5)


@needs_tf_keras
@pytest.mark.parametrize(
    "config", [FIRST_PHASE[0], *(pytest.param(name, marks=pytest.mark.slow) for name in (IMAGENET[0], DLRM))]
)
def test_a_run_is_resumed_to_the_same_end(config, data_dir, prepared, trained, strategies):
    """From batches of records, single records, blocks of examples; arrays as the digits' are resumed in test_train."""
    data, one = prepared(data_dir, config), strategies(1)
    common = ["schedule=constant", "warmup_epochs=0", "deterministic=true", "seed=1"]
    half = trained(config, data, one, settings=[*common, "epochs=1"])
    both = trained(config, data, one, settings=[*common, "epochs=2"], resumed=half)
    straight = trained(config, data, one, settings=[*common, "epochs=2"])
    assert (both / "history.csv").read_text() == (straight / "history.csv").read_text()
    assert len(history.read_history(both / "history.csv")) == 2
    headline = train.load_config(config).task.headline
    left, right = (json.loads((run / "summary.json").read_text())[headline] for run in (both, straight))
    assert left == pytest.approx(right, abs=1e-6)


@needs_tf_keras
def test_the_encoder_of_a_run_is_what_squad_starts_from(data_dir, prepared, trained, strategies):
    first = FIRST_PHASE[0]
    source = runs.read(trained(first, prepared(data_dir, first), strategies(1))).model()
    task = train.apply_overrides(train.load_config("bert_squad_small"), ["task.encoder=tiny"]).task
    model = task.build()
    head = [np.array(weight) for weight in model.span_labeling.get_weights()]
    initial_weights.take(model, task, trained(first, prepared(data_dir, first), strategies(1)))
    for left, right in zip(task.encoder_of(model).get_weights(), source.encoder_network.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)
    for left, right in zip(model.span_labeling.get_weights(), head, strict=True):
        np.testing.assert_array_equal(left, right)


@needs_tf_keras
def test_an_encoder_of_another_size_is_refused(data_dir, prepared, trained, strategies):
    first = FIRST_PHASE[0]
    run = trained(first, prepared(data_dir, first), strategies(1))
    task = train.load_config("bert_squad_small").task
    with pytest.raises(ValueError, match="its weights are not those of this network .* Set the same sizes"):
        initial_weights.take(task.build(), task, run)


SIGNATURES = {
    "cifar10_simigrad_small": "serving_default",
    "bert_large_pretrain_small": "masked_words",
    "bert_squad_small": "serving_default",
    "imagenet_resnet50_small": "serving_default",
    "dlrm_criteo_small": "serving_default",
}


@pytest.mark.parametrize("config", [parameter for parameter in ALL if parameter.values[0] in SIGNATURES])
def test_signatures_answer_to_saved_model_cli(config, data_dir, prepared, trained, strategies, tmp_path):
    model = run_of(config, 1, data_dir, prepared, trained, strategies) / "saved_model"
    name = SIGNATURES[config]
    with np.load(model / check_saved_model.CHECK) as arrays:
        tried = {key.removeprefix(f"{name}/"): array for key, array in arrays.items() if key.startswith(f"{name}/")}
    inputs = {key.removeprefix("input/"): array for key, array in tried.items() if key.startswith("input/")}
    for key, array in inputs.items():
        np.save(tmp_path / f"{key}.npy", array)
    given = ";".join(f"{key}={tmp_path / key}.npy" for key in inputs)
    cli = [sys.executable, "-m", "tensorflow.python.tools.saved_model_cli", "run", "--dir", str(model), "--tag_set", "serve"]
    asked = ["--signature_def", name, "--inputs", given, "--outdir", str(tmp_path / "answers")]
    done = subprocess.run([*cli, *asked], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = {path.stem: np.load(path) for path in (tmp_path / "answers").glob("*.npy")}
    expected = {key.removeprefix("output/"): array for key, array in tried.items() if key.startswith("output/")}
    assert set(answers) == set(expected)
    for key, array in expected.items():
        np.testing.assert_allclose(answers[key], array, atol=1e-5)
