"""VRGD on CIFAR-10 with ResNet-56: momentum, Adam, LAMB and LARS with and without it, at batches of 256 to 8k.

Paper:    Jiang et al., "Accelerating Large Batch Training via Gradient Signal to Noise Ratio (GSNR)", arXiv 2309.13681: its
          CIFAR-10 table. Its numeric rates were not to be had: 0.1 for momentum is the network's own, those of the others (see
          `python -m tools.vrgd_table --help`), the cosine, 200 epochs with 5 of warm-up and the L2 of 1e-4 are our choice.
Command:  python -m tools.train cifar10_vrgd --set vrgd_gamma=0.1 --data-dir DIR
          The table, 72 runs one after the other:
          python -m tools.vrgd_table cifar10_vrgd --data-dir DIR --optimizers momentum,adam,lamb,lars
          --batch-sizes 256,512,1024,2048,4096,8192
Hardware: one GPU. Not run here; the small twin is cifar10_vrgd_small.
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import Cifar10


def get_config() -> Experiment:
    return Experiment(
        name="cifar10_vrgd",
        task=Cifar10(network="resnet56"),
        policy=sg.FixedBatch(batch_size=256),
        epochs=200,
        micro_batch_size=32,
        reference_batch_size=256,
        learning_rate=0.1,
        momentum=0.9,
        l2=1e-4,
        vrgd_gamma=0.0,
        schedule="cosine",
        warmup_epochs=5,
    )
