"""SimiGrad on CIFAR-10 with ResNet-8: small enough for two CPU cores.

Paper:    Qin et al., "SimiGrad: Fine-Grained Adaptive Batching for Large Scale Training using Gradient Similarity
          Measurement", NeurIPS 2021, with its optimizer: SGD 0.1 / 0.9, coupled L2 5e-4 on every weight, square-root rule.
          Network and schedule are smaller than the paper's: ResNet-8 (He et al. 2015, section 4.2), 20 epochs, cosine.
Command:  python -m tools.train cifar10_simigrad_small --data-dir DIR
          with --set "policy=FixedBatch(batch_size=128)", or --set "policy=FixedBatch(batch_size=4096)" --set warmup_epochs=2
Hardware: two CPU cores.
Measured: 2026-11-30 and 2026-12-01 (fixed 576), TensorFlow 2.20.0, Keras 3.15.1, one replica, seed 0 (one seed), all 50,000
          training images, 20 epochs: the same 999,680 examples in each row. The machine did other work beside: the seconds are
          upper bounds, and do not compare the rows. "Off bounds": updates whose batch is neither the smallest nor the largest.

          batch               test accuracy (best epoch)  updates  mean batch  largest  off bounds  size changes  seconds
          SimiGrad 128..8192  81.1 % (81.2 %)               1,653         605    8,064        79 %         1,003      896
          fixed 576           80.5 % (80.6 %)               1,736         576      576           -             0    1,190
          fixed 128           82.6 % (82.6 %)               7,810         128      128           -             0    1,183
          fixed 4,096         70.7 % (70.7 %)                 245       4,080    4,096           -             0    1,163

          576 is the multiple of the micro-batch that is nearest to SimiGrad's mean (tools.compare). SimiGrad makes 4.7 times
          fewer updates than the batch of 128 and loses 1.5 points to it; the fixed large batch loses 11.9 at this budget of
          examples. The batch grows from 128 to 8,064 as the gradient gets noisier (picture beside).
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import Cifar10


def get_config() -> Experiment:
    return Experiment(
        name="cifar10_simigrad_small",
        task=Cifar10(network="resnet8"),
        policy=sg.SimiGrad(target_similarity=0.2, min_batch_size=128, max_batch_size=8192),
        epochs=20,
        micro_batch_size=64,
        reference_batch_size=128,
        learning_rate=0.1,
        momentum=0.9,
        l2=5e-4,
        schedule="cosine",
    )
