"""Builds and traces an experiment without data and without memory for its weights, and counts."""

import math

from tools.progress import Progress

REPLICAS = 8


def run(experiment):
    """Prints parameters and FLOPs of an experiment; raises what `fit` would raise about its model and its shapes.

    The model is built under a described TPUStrategy, whose variables have shapes and no values: tf_keras is used therefore.
    """
    from tools.train import choose_keras

    choose_keras("tf_keras")
    with Progress("dry run", 3, "steps") as progress:
        counted, model = traced(experiment, progress)
    report(experiment, counted, model)


def traced(experiment, progress):
    """What a micro-step computes, and the model."""
    from tf_simigrad.compat import tpu_description
    from tf_simigrad.train.update import INPUT_SPECS
    from tools import building, flops
    from tools.tpu.programs import SLOT, Training

    strategy = tpu_description.described_strategy(REPLICAS, large="nothing")
    with strategy.scope():
        model = building.model(experiment, building.EXAMPLES_WITHOUT_DATA)
    progress.add()
    element = experiment.task.element_spec(experiment.micro_batch_size)
    training = Training(strategy, model, building.callback(experiment), element)
    micro_step = tpu_description.replica_function(strategy, training.parts.step.accumulate, (training.element, SLOT))
    tpu_description.replica_function(strategy, training.parts.step.update_program(), tuple(INPUT_SPECS))
    progress.add(2)
    return flops.count(micro_step), model


def report(experiment, counted, model):
    from tools import flops

    micro_batch_size = experiment.micro_batch_size
    trainable = sum(math.prod(v.shape) for v in model.trainable_variables)
    print(f"{experiment.name}: built and traced on {REPLICAS} described replicas, without data")
    print(f"  parameters: {model.count_params():,}, {trainable:,} of them trained")
    print(f"  a micro-step of {micro_batch_size} examples on a replica: {flops.describe(counted.total)}")
    print(f"  an example: {flops.describe(counted.total / micro_batch_size)}, forward and backward, matrix products only")
    for name, number in sorted(counted.by_op.items(), key=lambda item: -item[1]):
        print(f"    {name}: {flops.describe(number / micro_batch_size)}")
    for sentence in counted.uncounted:
        print(f"  not counted: {sentence}")
