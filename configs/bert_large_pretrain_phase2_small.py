"""Second phase of pretraining a tiny BERT on a hundred books: the small twin of bert_large_pretrain_phase2.

TODO
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import BertPretraining


def get_config() -> Experiment:
    return Experiment(
        name="bert_large_pretrain_phase2_small",
        task=BertPretraining(encoder="tiny", length=512, predictions=76),
        policy=sg.FixedBatch(batch_size=128),
        epochs=2,
        examples_per_epoch=2048,
        micro_batch_size=8,
        reference_batch_size=64,
        learning_rate=1e-3,
        optimizer="lamb",
        weight_decay=0.01,
        global_clipnorm=1.0,
        schedule="linear",
        warmup_epochs=0.25,
        validation_batch_size=32,
        validation_examples=256,
    )
