"""SimiGrad on CIFAR-10 with ResNet-8: small enough for two CPU cores.

Paper:    Qin et al., "SimiGrad: Fine-Grained Adaptive Batching for Large Scale Training using Gradient Similarity
          Measurement", NeurIPS 2021, with its optimizer: SGD 0.1 / 0.9, coupled L2 5e-4 on every weight, square-root rule.
          Network and schedule are smaller than the paper's: ResNet-8 (He et al. 2015, section 4.2), 20 epochs, cosine.
Command:  python -m tools.train cifar10_resnet8_simigrad --strategy mirrored --devices 2 --data-dir DIR
Hardware: two CPU cores.
"""

import tf_simigrad as sg
from configs.experiment import Experiment


def get_config() -> Experiment:
    return Experiment(
        name="cifar10_resnet8_simigrad",
        task="cifar10",
        depth=8,
        policy=sg.SimiGrad(target_similarity=0.2, min_batch_size=128, max_batch_size=8192),
        epochs=20,
        micro_batch_size=64,
        reference_batch_size=128,
        learning_rate=0.1,
        momentum=0.9,
        l2=5e-4,
        schedule="cosine",
    )
