"""VRGD on CIFAR-10: momentum and LARS with and without it, at batches of 256, 1,024 and 4,096.

Paper:    Jiang et al., "Accelerating Large Batch Training via Gradient Signal to Noise Ratio (GSNR)", arXiv 2309.13681.
          The network is smaller than the paper's and the budget far shorter: ResNet-8 (He et al. 2015, section 4.2) with half
          the channels, 6 epochs of all 50,000 training images with one of warm-up, cosine, square-root rule from 256.
Command:  python -m tools.vrgd_table cifar10_vrgd_small --data-dir DIR
          (18 trainings; one of them: python -m tools.train cifar10_vrgd_small --set vrgd_gamma=0.1 --data-dir DIR)
Hardware: two CPU cores.
Measured: 2026-11-30, TensorFlow 2.20.0, Keras 3.15.1, one replica, micro-batches of 32 (8, 32 and 128 groups), seed 0 (one
          seed). The machine did other work beside: the seconds are upper bounds, and do not compare the columns. "Shorter" is
          the plain optimizer at the learning rate times VRGD's mean multiplier. Rates at a batch of 256: momentum 0.1, LARS 5
          (5 of 2, 5 and 10, by the accuracy after two epochs at 256).

          optimizer  batch  updates  plain   VRGD    shorter  multiplier  seconds
          momentum     256    1,172  64.4 %  62.4 %   59.8 %        0.50  234  251  268
          momentum   1,024      293  56.3 %  56.1 %   51.3 %        0.53  224  232  247
          momentum   4,096       74  43.2 %  42.1 %   39.4 %        0.53  254  252  273
          LARS         256    1,172  66.6 %  66.2 %   61.7 %        0.50  196  188  200
          LARS       1,024      293  63.2 %  59.4 %   57.4 %        0.52  165  207  194
          LARS       4,096       74  10.0 %  14.8 %   44.2 %        0.43  206  207  198

          Test accuracy after the last epoch. VRGD beats its baseline in one row of six, where the rate of 20 is too large for
          both, and where the baseline at the shortened rate beats both by far. In the other five it loses 0.2 to 3.8 points to
          the baseline and beats the shortened rate by 2.0 to 4.8. With so few updates no cut of the rate pays, hidden or not;
          the paper trains 200 epochs, and does not tune the baselines' rates.
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import Cifar10


def get_config() -> Experiment:
    return Experiment(
        name="cifar10_vrgd_small",
        task=Cifar10(network="resnet8", width=8),
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
