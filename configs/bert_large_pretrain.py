"""SimiGrad on pretraining of BERT-Large, first phase: sequences of 128 tokens.

Paper:    Qin et al., "SimiGrad: Fine-Grained Adaptive Batching for Large Scale Training using Gradient Similarity
          Measurement", NeurIPS 2021, and its scripts: LAMB 6e-4 without warm-up, linear decay over 400 million sequences, batch
          128 to start with, target 0.8, upper bound 256k. The paper reports a mean batch of 78k.
          Its decay and clipping are unknown: 0.01 and 1.0 are BERT's own. An epoch of a million sequences (after which the
          run validates and saves), the micro-batch of 64 and whole-word masks are our choice.
Command:  python -m tools.prepare_data bert-pretraining --text FILES --validation-text FILES --vocabulary vocab.txt --length 128
          --predictions 20 --copies 5 --shards 1024 --output DATA128
          python -m tools.train bert_large_pretrain --data-dir DATA128 --strategy mirrored
          The second phase is bert_large_pretrain_phase2, VRGD's training bert_large_pretrain_vrgd.
Hardware: many GPUs or a TPU. Not run here; `--dry-run` counts, the small twin is bert_large_pretrain_small.
Dry run:  337,275,708 parameters; 241 GFLOP an example, forward and backward (matrix products), 2026-12-01.
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import BertPretraining


def get_config() -> Experiment:
    return Experiment(
        name="bert_large_pretrain",
        task=BertPretraining(encoder="large", length=128, predictions=20),
        policy=sg.SimiGrad(target_similarity=0.8, min_batch_size=128, max_batch_size=262_144),
        epochs=400,
        examples_per_epoch=1_000_000,
        micro_batch_size=64,
        reference_batch_size=128,
        learning_rate=6e-4,
        optimizer="lamb",
        weight_decay=0.01,
        global_clipnorm=1.0,
        schedule="linear",
        precision="bfloat16",
        validation_batch_size=1024,
        validation_examples=10_240,
    )
