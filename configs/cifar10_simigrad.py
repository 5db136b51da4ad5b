"""SimiGrad on CIFAR-10 with ResNet-18, as its published scripts have it.

Paper:    Qin et al., "SimiGrad: Fine-Grained Adaptive Batching for Large Scale Training using Gradient Similarity
          Measurement", NeurIPS 2021, and its scripts: ResNet-18, SGD 0.1 / 0.9, coupled L2 5e-4 on every weight, a tenth of the
          rate after epochs 80 and 120 of 200, batch 128 to start with, square-root rule. Its scripts try targets from 0 to 0.4
          and upper bounds from 1k to 16k; 0.2 and 16k here are our choice among them, the micro-batch of 64 is ours.
          (A target of 0 is refused here: with it the batch would only ever shrink.)
Command:  python -m tools.train cifar10_simigrad --data-dir DIR
          The grid of the scripts, one run after the other and a table at the end:
          python -m tools.compare cifar10_simigrad --data-dir DIR --grid policy.target_similarity=0.05,0.1,0.15,0.2,0.4
          --grid policy.max_batch_size=1024,4096,16384
Hardware: one GPU. Not run here; the small twin is cifar10_simigrad_small.
Dry run:  11,173,962 trained parameters; 3.33 GFLOP an example, forward and backward, 2026-11-30.
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import Cifar10


def get_config() -> Experiment:
    return Experiment(
        name="cifar10_simigrad",
        task=Cifar10(network="resnet18"),
        policy=sg.SimiGrad(target_similarity=0.2, min_batch_size=128, max_batch_size=16_384),
        epochs=200,
        micro_batch_size=64,
        reference_batch_size=128,
        learning_rate=0.1,
        momentum=0.9,
        l2=5e-4,
        schedule="steps",
        step_epochs=(80, 120),
    )
