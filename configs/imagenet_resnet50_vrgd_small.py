"""VR-LARS on a small residual network with CIFAR-10 as JPEG files of 64 pixels, read as ImageNet is.

Paper:    Jiang et al., "Accelerating Large Batch Training via Gradient Signal to Noise Ratio (GSNR)", arXiv 2309.13681. Network
          and data are those of imagenet_resnet50_small; 4 epochs, batch 1,024 of 16 groups. The rate is untuned.
Command:  python -m tools.train imagenet_resnet50_vrgd_small --data-dir IMAGES             (IMAGES: imagenet_resnet50_small)
          The baseline: --set vrgd_gamma=0.
Hardware: two CPU cores.
Measured: 2026-12-01, TensorFlow 2.20.0, tf_keras 2.20.1, one replica, seed 0 (one seed), 199,936 examples: top-1 66.2 %, top-5
          96.8 % after 196 updates, 274 s beside other work. Compared with nothing.
"""

import tf_simigrad as sg
from configs.experiment import Experiment
from models.tasks import ImageNet


def get_config() -> Experiment:
    return Experiment(
        name="imagenet_resnet50_vrgd_small",
        task=ImageNet(depth=18, width=0.5, image_size=64, classes=10, label_smoothing=0.1, min_crop_area=0.25),
        policy=sg.FixedBatch(batch_size=1024),
        epochs=4,
        micro_batch_size=64,
        reference_batch_size=1024,
        learning_rate=10.0,
        optimizer="lars",
        momentum=0.9,
        weight_decay=1e-4,
        vrgd_gamma=0.1,
        schedule="cosine",
        warmup_epochs=1,
        validation_batch_size=500,
    )
