"""VR-LAMB on pretraining of BERT-Large, first phase, at a batch of 64k.

Paper:    Jiang et al., "Accelerating Large Batch Training via Gradient Signal to Noise Ratio (GSNR)", arXiv 2309.13681: VR-LAMB
          at 64k (SQuAD F1 91.30) and at 128k with 64k in the second phase (90.85); gamma 0.1, the groups are the devices.
          Rates, length, decay and clipping were not to be had: 5e-3 at 64k (the square root of LAMB's published rates), 460
          million sequences with a warm-up of 15 %, 0.01 and 1.0 are our choice.
Command:  python -m tools.train bert_large_pretrain_vrgd --data-dir DATA128 --strategy tpu       (DATA128: bert_large_pretrain)
          At 128k: --set policy.batch_size=131072; the rate follows by the square-root rule. Its second phase at 64k:
          python -m tools.train bert_large_pretrain_phase2 --data-dir DATA512 --initial-weights run/bert_large_pretrain_vrgd
          --set policy.batch_size=65536 --set vrgd_gamma=0.1 --set vrgd_groups=replicas
Hardware: 8 devices or more. Not run here; `--dry-run` counts, the small twin is bert_large_pretrain_vrgd_small.
Dry run:  337,275,708 parameters; 241 GFLOP an example, forward and backward (matrix products), 2026-12-01.
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import BertPretraining


def get_config() -> Experiment:
    return Experiment(
        name="bert_large_pretrain_vrgd",
        task=BertPretraining(encoder="large", length=128, predictions=20),
        policy=sg.FixedBatch(batch_size=65_536),
        epochs=460,
        examples_per_epoch=1_000_000,
        micro_batch_size=32,
        reference_batch_size=65_536,
        learning_rate=5e-3,
        optimizer="lamb",
        weight_decay=0.01,
        global_clipnorm=1.0,
        vrgd_gamma=0.1,
        vrgd_groups="replicas",
        schedule="linear",
        warmup_epochs=69,
        precision="bfloat16",
        validation_batch_size=1024,
        validation_examples=10_240,
    )
