"""Second phase of pretraining a tiny BERT on a hundred books: the small twin of bert_large_pretrain_phase2.

Paper:    Qin et al., "SimiGrad: Fine-Grained Adaptive Batching for Large Scale Training using Gradient Similarity
          Measurement", NeurIPS 2021, has a fixed batch in the second phase (bert_large_pretrain_phase2). All numbers
          here are our choice.
Command:  python -m tools.prepare_data bert-pretraining --text books_train.txt.gz --validation-text books_valid.txt.gz
          --vocabulary vocab.txt --length 512 --output DATA512
          python -m tools.train bert_large_pretrain_phase2_small --data-dir DATA512
          --initial-weights run/bert_large_pretrain_small
          With adaptation on: --set "policy=SimiGrad(target_similarity=0.1, min_batch_size=64, max_batch_size=512)"
Hardware: two CPU cores, a few minutes.
Measured: 2026-12-01, TensorFlow 2.20.0, tf_keras 2.20.1, one replica, seed 0 (one seed), from bert_large_pretrain_small: 32
          updates of 128, masked words of 256 sequences of 512 tokens from the validation books 6.150 nats, 161 s beside
          other work.
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
