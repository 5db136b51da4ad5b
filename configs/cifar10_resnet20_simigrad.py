"""SimiGrad on CIFAR-10 with ResNet-20, augmented by shifts and mirroring.

Paper:    Qin et al., "SimiGrad: Fine-Grained Adaptive Batching for Large Scale Training using Gradient Similarity
          Measurement", NeurIPS 2021: SGD 0.1 / 0.9, coupled L2 5e-4 on every weight, batch 128 to start with, square-root
          rule. Its published scripts train a ResNet-18 for 200 epochs in steps of 0.1; here a cosine takes their place.
          He et al., "Deep Residual Learning for Image Recognition", 2015, section 4.2, for the network and its augmentation;
          its L2 of 1e-4 is for a fixed batch of 128, so SimiGrad's value is kept. 182 epochs are its 64,000 updates of 128.
Command:  python -m tools.train cifar10_resnet20_simigrad --data-dir DIR
Hardware: one GPU.
"""

import tf_simigrad as sg
from configs.experiment import Experiment


def get_config() -> Experiment:
    return Experiment(
        name="cifar10_resnet20_simigrad",
        task="cifar10",
        depth=20,
        policy=sg.SimiGrad(target_similarity=0.2, min_batch_size=128, max_batch_size=8192),
        epochs=182,
        micro_batch_size=64,
        reference_batch_size=128,
        learning_rate=0.1,
        momentum=0.9,
        l2=5e-4,
        schedule="cosine",
    )
