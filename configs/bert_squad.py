"""BERT-Large on SQuAD 1.1, from pretrained weights.

Paper:    Qin et al., "SimiGrad: Fine-Grained Adaptive Batching for Large Scale Training using Gradient Similarity
          Measurement", NeurIPS 2021, and its scripts: 3e-5, batch 24, 2 epochs, length 384, stride 128; F1 90.69 after
          pretraining with a mean batch of 78k. The optimizer (Adam with a decoupled decay of 0.01 and clipping at 1.0), a
          tenth of warm-up and the linear decay are BERT's own.
Command:  python -m tools.prepare_data squad --train train-v1.1.json --validation dev-v1.1.json --vocabulary vocab.txt
          --output SQUAD
          python -m tools.train bert_squad --data-dir SQUAD --initial-weights run/bert_large_pretrain_phase2
          or from published weights: --initial-weights DIR of tools.prepare_data bert-weights
Hardware: one GPU. Not run here; `--dry-run` counts, the small twin is bert_squad_small.
Dry run:  335,143,938 parameters; 739 GFLOP an example, forward and backward (matrix products), 2026-11-30.
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import Squad


def get_config() -> Experiment:
    return Experiment(
        name="bert_squad",
        task=Squad(encoder="large", length=384, stride=128),
        policy=sg.FixedBatch(batch_size=24),
        epochs=2,
        micro_batch_size=8,
        reference_batch_size=24,
        learning_rate=3e-5,
        optimizer="adamw",
        weight_decay=0.01,
        global_clipnorm=1.0,
        schedule="linear",
        warmup_epochs=0.2,
        validation_batch_size=64,
    )
