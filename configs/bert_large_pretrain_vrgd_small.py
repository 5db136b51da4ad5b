"""VR-LAMB on pretraining of a tiny BERT on a hundred books: the small twin of bert_large_pretrain_vrgd.

Paper:    Jiang et al., "Accelerating Large Batch Training via Gradient Signal to Noise Ratio (GSNR)", arXiv 2309.13681,
          pretrains BERT-Large at 64k and 128k (bert_large_pretrain_vrgd). All numbers here but gamma are our choice; groups are
          the micro-steps, 8 of them.
Command:  python -m tools.train bert_large_pretrain_vrgd_small --data-dir DATA128     (DATA128: bert_large_pretrain_small)
          Without VRGD: --set vrgd_gamma=0
Hardware: two CPU cores, a quarter of an hour.
Measured: 2026-12-01, TensorFlow 2.20.0, tf_keras 2.20.1, one replica, seed 0 (one seed): 512 updates of 128, masked words of
          1,024 sequences from the validation books 6.492 nats, mean multiplier 0.72 (epochs 4 to 8). Killed with SIGKILL in the
          fourth epoch and resumed; the five epochs after that took 440 s beside other work. Not compared with plain LAMB.
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import BertPretraining


def get_config() -> Experiment:
    return Experiment(
        name="bert_large_pretrain_vrgd_small",
        task=BertPretraining(encoder="tiny", length=128, predictions=20),
        policy=sg.FixedBatch(batch_size=128),
        epochs=8,
        examples_per_epoch=8192,
        micro_batch_size=16,
        reference_batch_size=64,
        learning_rate=2e-3,
        optimizer="lamb",
        weight_decay=0.01,
        global_clipnorm=1.0,
        vrgd_gamma=0.1,
        schedule="linear",
        warmup_epochs=0.5,
        validation_batch_size=128,
        validation_examples=1024,
    )
