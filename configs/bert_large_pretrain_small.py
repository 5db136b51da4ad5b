"""SimiGrad on pretraining of a tiny BERT on a hundred books, first phase: the small twin of bert_large_pretrain.

TODO
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import BertPretraining


def get_config() -> Experiment:
    return Experiment(
        name="bert_large_pretrain_small",
        task=BertPretraining(encoder="tiny", length=128, predictions=20),
        policy=sg.SimiGrad(target_similarity=0.1, min_batch_size=64, max_batch_size=1024),
        epochs=16,
        examples_per_epoch=8192,
        micro_batch_size=32,
        reference_batch_size=64,
        learning_rate=2e-3,
        optimizer="lamb",
        weight_decay=0.01,
        global_clipnorm=1.0,
        schedule="linear",
        warmup_epochs=0.5,
        validation_batch_size=128,
        validation_examples=1024,
    )
