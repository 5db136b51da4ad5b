"""MiniLM on a part of SQuAD 1.1, from published weights: the small twin of bert_squad.

TODO
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import Squad


def get_config() -> Experiment:
    return Experiment(
        name="bert_squad_small",
        task=Squad(encoder="minilm", length=192, stride=96),
        policy=sg.SimiGrad(target_similarity=0.1, min_batch_size=16, max_batch_size=96),
        epochs=2,
        examples_per_epoch=2400,
        micro_batch_size=8,
        reference_batch_size=16,
        learning_rate=2e-4,
        optimizer="adamw",
        weight_decay=0.01,
        global_clipnorm=1.0,
        schedule="linear",
        warmup_epochs=0.2,
        validation_batch_size=64,
    )
