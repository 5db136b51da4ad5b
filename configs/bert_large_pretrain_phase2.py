"""Second phase of pretraining BERT-Large: sequences of 512 tokens, from the weights of the first.

Paper:    Qin et al., "SimiGrad: Fine-Grained Adaptive Batching for Large Scale Training using Gradient Similarity
          Measurement", NeurIPS 2021, and its scripts: phase 2 with a fixed batch of 32k, adaptation off. Rate,
          length (44 million sequences, a tenth of all), decay and clipping are our choice after BERT's and LAMB's papers: 4e-3
          at 32k with a linear decay and a tenth of warm-up.
Command:  python -m tools.prepare_data bert-pretraining --text FILES --validation-text FILES --vocabulary vocab.txt --length 512
          --predictions 76 --copies 5 --shards 1024 --output DATA512
          python -m tools.train bert_large_pretrain_phase2 --data-dir DATA512 --initial-weights run/bert_large_pretrain
          With adaptation on: --set "policy=SimiGrad(target_similarity=0.8, min_batch_size=4096, max_batch_size=65536)"
Hardware: many GPUs or a TPU. Not run here; `--dry-run` counts, the small twin is bert_large_pretrain_phase2_small.
Dry run:  337,275,708 parameters; 1.02 TFLOP an example, forward and backward (matrix products), 2026-12-01.
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import BertPretraining


def get_config() -> Experiment:
    return Experiment(
        name="bert_large_pretrain_phase2",
        task=BertPretraining(encoder="large", length=512, predictions=76),
        policy=sg.FixedBatch(batch_size=32_768),
        epochs=44,
        examples_per_epoch=1_000_000,
        micro_batch_size=16,
        reference_batch_size=32_768,
        learning_rate=4e-3,
        optimizer="lamb",
        weight_decay=0.01,
        global_clipnorm=1.0,
        schedule="linear",
        warmup_epochs=4.4,
        precision="bfloat16",
        validation_batch_size=256,
        validation_examples=10_240,
    )
