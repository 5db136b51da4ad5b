"""What the runner of experiments does otherwise on a TPU, whose strategy is described here."""

import re

import pytest

from tf_simigrad.compat import keras_private
from tools import check_saved_model, experiment, train


@pytest.mark.one_keras
@pytest.mark.parametrize(
    ("batch_size", "examples", "replicas", "advice"),
    [
        (500, 10_000, 8, "such as 400"),
        (512, 10_000, 8, "such as 400"),
        (360, 360, 7, "and there is none"),
        (12, 360, 8, "such as 8"),
    ],
)
def test_validation_elements_of_several_sizes_are_refused(batch_size, examples, replicas, advice):
    with pytest.raises(ValueError, match=re.escape(f"divides the {examples} validation examples, {advice}")):
        experiment.check_validation(batch_size, examples, replicas)


@pytest.mark.one_keras
@pytest.mark.parametrize(("batch_size", "examples", "replicas"), [(400, 10_000, 8), (360, 360, 8), (8, 8, 8)])
def test_validation_elements_of_one_size_are_accepted(batch_size, examples, replicas):
    experiment.check_validation(batch_size, examples, replicas)


@pytest.mark.skipif(keras_private.KERAS_3, reason="TPUStrategy is supported under tf_keras only")
def test_a_run_on_one_core_leaves_its_results(one_core, tmp_path):
    """From the experiment to the export, which a copy of the model on the host checks."""
    settings = ["epochs=1", "validation_batch_size=360", "max_updates=3"]
    digits = train.apply_overrides(train.load_config("quickstart_digits"), settings)
    training = experiment.build(digits, one_core, digits.task.load(None))
    checkpoint, epoch = experiment.restore(training, tmp_path, resume=False)
    experiment.run(training, tmp_path, checkpoint, epoch)
    assert check_saved_model.main([str(tmp_path)]) == 0
    assert (tmp_path / "summary.json").is_file()
