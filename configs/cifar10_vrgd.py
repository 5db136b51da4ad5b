"""VRGD on CIFAR-10: momentum and LARS with and without it, at batches of 256, 1,024 and 4,096.

Paper:    Jiang et al., "Accelerating Large Batch Training via Gradient Signal to Noise Ratio (GSNR)", arXiv 2309.13681.
"""

import tf_simigrad as sg
from configs.experiment import Experiment


def get_config() -> Experiment:
    return Experiment(
        name="cifar10_vrgd",
        task="cifar10",
        depth=8,
        width=8,
        policy=sg.FixedBatch(batch_size=256),
        epochs=6,
        micro_batch_size=32,
        reference_batch_size=256,
        learning_rate=0.1,
        momentum=0.9,
        l2=5e-4,
        vrgd_gamma=0.0,
        schedule="cosine",
        warmup_epochs=1,
    )
