"""What is timed of the pipeline and of the step, that neither disturbs the other, and what is said of it."""

import dataclasses
import json
import time

import numpy as np
import pytest

import tf_simigrad as sg
from models.tasks.arrays import ArrayData
from tests.tools.command_line import refused
from tests.tools.test_benchmark import COMMON, result
from tools import benchmark
from tools.train import load_config

pytestmark = pytest.mark.one_keras

MEASURES = (
    "ratio", "pipeline_examples_per_second", "step_examples_per_second", "fit_examples_per_second", "fit_over_slower",
    "fit_over_in_turn", "pipeline_cores_busy", "cores_per_1000_examples_per_second",
)  # fmt: skip
SECONDS_A_PIECE = 0.03


class Counted(ArrayData):
    """Pictures of zeros whose elements are counted as they are made, each of which takes some time without work."""

    def __init__(self, seconds=0.0):
        images, labels = np.zeros((64, 8, 8, 1), np.float32), np.zeros(64, np.int32)
        super().__init__(((images, labels), (images, labels)))
        self.seconds, self.made, self.datasets = seconds, 0, []

    def training(self, element, seed, initial_epoch, examples_per_epoch):
        import tensorflow as tf

        def count(image):
            time.sleep(self.seconds)
            self.made += 1
            return image

        def counted(images, labels):
            same = tf.numpy_function(count, [images], images.dtype)
            same.set_shape(images.shape)
            return same, labels

        dataset = super().training(element, seed, initial_epoch, examples_per_epoch).map(counted)
        self.datasets.append(dataset.prefetch(tf.data.AUTOTUNE))
        return self.datasets[-1]


@pytest.fixture
def pipeline(tf):
    from tools import benchmark_pipeline

    return benchmark_pipeline


def digits(**changes):
    return dataclasses.replace(load_config("quickstart_digits"), **changes)


def test_one_json_object_in_the_words_of_the_others():
    found = result("pipeline", "quickstart_digits", "--blocks", 2, "--seconds", 0.1, "--set", "micro_batch_size=16")
    settings = {"config", "blocks", "seconds", "examples_per_element", "batch_size", "micro_steps", "cores", "bottleneck"}
    assert set(found) == COMMON | {*MEASURES, *(f"{name}_interval" for name in MEASURES)} | settings
    assert (found["config"], found["replicas"], found["blocks"], found["seconds"]) == ("quickstart_digits", 1, 2, 0.1)
    # The first batch of the experiment is one of 64.
    assert (found["examples_per_element"], found["batch_size"], found["micro_steps"]) == (16, 64, 4)
    for name in MEASURES:
        low, high = found[f"{name}_interval"]
        assert 0 < low <= found[name] <= high, name
    # Gathering 16 small pictures takes far less than two passes of a network over them.
    assert found["ratio"] > 1 and found["bottleneck"] == "step"


def test_a_slow_pipeline_is_the_bottleneck(pipeline, strategies, capsys):
    found = pipeline.measure(strategies(2), digits(), Counted(SECONDS_A_PIECE), blocks=2, seconds=0.15)
    # 32 for each of two replicas.
    per_element = 64
    assert (found["examples_per_element"], found["bottleneck"]) == (per_element, "pipeline")
    # It sleeps for so long before each element, and does little else.
    most = per_element / SECONDS_A_PIECE
    assert most / 3 < found["pipeline_examples_per_second"] <= 1.1 * most
    assert found["fit_examples_per_second"] <= 1.1 * most < found["step_examples_per_second"]
    assert found["ratio_interval"][1] < 1 and found["fit_over_slower"] > 0.5
    assert "the bottleneck: pipeline" in capsys.readouterr().err


@pytest.mark.slow
def test_while_the_step_is_timed_no_pipeline_works(pipeline, strategies, monkeypatch):
    data, during_steps, fit = Counted(0.002), [], pipeline.fit

    def watched(training, dataset, window):
        before = data.made
        rate = fit(training, dataset, window)
        if dataset is not data.datasets[0]:
            during_steps.append(data.made - before)
        return rate

    monkeypatch.setattr(pipeline, "fit", watched)
    pipeline.measure(strategies(1), digits(), data, blocks=4, seconds=0.05)
    assert len(data.datasets) == 1 and data.made > 20
    # What was being made when its iterator ended may be one; a buffer that fills up would be more.
    assert len(during_steps) == 5 and max(during_steps) <= 1


def test_the_step_is_timed_at_the_first_batch_size_and_changes_no_weight(pipeline, strategies):
    policy = sg.SimiGrad(target_similarity=0.99, min_batch_size=32, max_batch_size=512, initial_batch_size=96)
    still = pipeline.standing_still(digits(policy=policy))
    training = pipeline.runner.build(still, strategies(1), Counted())
    before = training.model.get_weights()
    pipeline.fit(training, training.data.training(32, 0, 0, 64), pipeline.Window(0, 0.2))
    assert len(training.adaptive.history) > 2
    assert {(record.batch_size, record.micro_steps) for record in training.adaptive.history} == {(96, 3)}
    assert training.adaptive.history[0].similarity is not None and training.adaptive.discarded_examples == 0
    for old, new in zip(before, training.model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(
    ("policy", "micro_steps"),
    [(sg.FixedBatch(batch_size=32), 1), (sg.NoiseScale(target_similarity=0.5, min_batch_size=32, max_batch_size=64), 2)],
    ids=str,
)
def test_what_the_policy_needs_stays(pipeline, strategies, policy, micro_steps):
    """A similarity takes two micro-steps where there is one replica; a fixed batch needs none."""
    training = pipeline.runner.build(pipeline.standing_still(digits(policy=policy)), strategies(1), Counted())
    pipeline.fit(training, training.data.training(32, 0, 0, 64), pipeline.Window(0, 0))
    assert {record.micro_steps for record in training.adaptive.history} == {micro_steps}


class Clock:
    """Stands in for `time`: each call of `perf_counter` is a second after the last, half of which the processor works."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        self.now += 1.0
        return self.now

    def process_time(self):
        return self.now / 2


def test_a_window_begins_after_its_warm_up_and_is_as_long_as_it_should_be(pipeline, monkeypatch):
    monkeypatch.setattr(pipeline, "time", Clock())
    window = pipeline.Window(warm_up=2.0, seconds=3.0)
    # Until the third call it warms up, and it counts from there: 5 in three seconds.
    assert [window.is_over(examples) for examples in (100, 110, 111, 112, 114, 116)] == [False] * 5 + [True]
    assert window.rate == pytest.approx((5 / 3, 1.5 / 5))
    assert window.rate.cores_busy == pytest.approx(0.5)


def test_data_that_ends_is_refused(pipeline, tf):
    with pytest.raises(ValueError, match="ended within a block: expected endless epochs"):
        pipeline.read(tf.data.Dataset.range(5), 1, pipeline.Window(0, 60))


def rates_of(pipeline, speeds):
    """All with two cores busy."""
    return {kind: [pipeline.Rate(speed, 2 / speed) for speed in speeds[kind]] for kind in pipeline.KINDS}


def test_ratios_are_those_of_blocks_of_one_round(pipeline):
    """Other load makes the third round ten times slower, in all three."""
    speeds = {"pipeline": [4000.0, 4000.0, 400.0], "step": [1000.0, 1000.0, 100.0], "fit": [600.0, 600.0, 60.0]}
    found = pipeline.summarise(rates_of(pipeline, speeds), seed=0)
    assert (found["pipeline_examples_per_second"], found["step_examples_per_second"]) == (4000, 1000)
    for name, expected in (("ratio", 4.0), ("fit_over_slower", 0.6), ("fit_over_in_turn", 0.75), ("pipeline_cores_busy", 2.0)):
        assert [found[name], *found[f"{name}_interval"]] == pytest.approx([expected] * 3), name
    assert found["cores_per_1000_examples_per_second"] == pytest.approx(0.5)
    assert found["bottleneck"] == "step"


@pytest.mark.parametrize(
    ("ratios", "named"),
    [([0.5, 0.6, 0.7], "pipeline"), ([1.5, 1.6, 1.7], "step"), ([0.5, 1.0, 1.5], "neither"), ([1.0, 1.0], "neither")],
)
def test_the_bottleneck_is_the_slower_one_beyond_doubt(pipeline, ratios, named):
    speeds = {"pipeline": [100 * ratio for ratio in ratios], "step": [100.0] * len(ratios), "fit": [50.0] * len(ratios)}
    assert pipeline.summarise(rates_of(pipeline, speeds), seed=0)["bottleneck"] == named


def test_nine_of_ten_intervals_hold_the_median(pipeline):
    rng = np.random.default_rng(2)
    held = 0
    for seed in range(200):
        low, high = pipeline.interval_of_median(rng.normal(1.0, 0.1, size=25), seed)
        held += low <= 1.0 <= high
    assert 0.82 <= held / 200 <= 0.98


def test_the_result_is_said_in_words(pipeline):
    speeds = {"pipeline": [4000.0] * 3, "step": [40.0] * 3, "fit": [39.0] * 3}
    said = pipeline.described({**pipeline.summarise(rates_of(pipeline, speeds), 0), "batch_size": 8192, "cores": 2})
    for sentence in (
        "the pipeline gives 4,000 (4,000 to 4,000) examples/s and keeps 2 (2 to 2) of 2 cores busy",
        "1,000 examples/s take 0.5 (0.5 to 0.5) of them",
        "the step takes 40 (40 to 40) examples/s, in updates of 8,192 examples",
        "ratio of pipeline to step 100 (100 to 100); the bottleneck: step",
        "a step of up to 4,000 examples/s that leaves them alone is fed by these 2 cores",
        "fit does both at 39 (39 to 39) examples/s: 0.975 (0.975 to 0.975) of the slower one, 0.985 (",
    ):
        assert sentence in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: CONFIG"),
        (["quickstart_digit"], "no experiment quickstart_digit; did you mean quickstart_digits"),
        (["quickstart_digits", "--set", "epoch=1"], "no field epoch; did you mean epochs"),
        (["quickstart_digits", "--data-dir", "nowhere"], "--data-dir nowhere: the digits come with scikit-learn"),
        (["cifar10_simigrad_small", "--data-dir", "nowhere"], "no CIFAR-10 in nowhere"),
        (["quickstart_digits", "--replicas", 0], "--replicas 0: expected 1 or more"),
        (["quickstart_digits", "--blocks", 1], "--blocks 1: expected 2 or more"),
        (["quickstart_digits", "--seconds", 0], "--seconds 0.0: expected a time, more than 0"),
        (["quickstart_digits", "--seconds", "nan"], "--seconds nan: expected a time, more than 0"),
        (["quickstart_digits", "--seconds", "inf"], "--seconds inf: expected a time, more than 0"),
        (["quickstart_digits", "--steps", 3], "unrecognized arguments: --steps 3"),
        (["quickstart_digits", "--set", "micro_batch_size=2000"], "micro_batch_size=2000: 2000 on all replicas, of 1437"),
    ],
    ids=str,
)
def test_what_is_wrong_is_one_line(tf, capsys, arguments, message):
    assert message in refused(benchmark.main, capsys, "pipeline", *arguments)


def test_the_keras_of_a_task_is_chosen_for_it(monkeypatch, capsys):
    """SQuAD's models are those of tf_keras; nothing is built here."""
    chosen = []
    monkeypatch.setattr(benchmark, "choose_keras", lambda keras, only=None: chosen.append((keras, only)))
    monkeypatch.setattr(benchmark, "measure", lambda args, experiment: {"ratio": experiment.micro_batch_size})
    monkeypatch.setattr(type(load_config("bert_squad_small").task), "check_data", lambda task, data_dir: None)
    benchmark.main(["pipeline", "bert_squad_small", "--set", "micro_batch_size=3"])
    assert chosen == [(None, "tf_keras")]
    assert json.loads(capsys.readouterr().out) == {"ratio": 3}
