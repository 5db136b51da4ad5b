"""VR-LARS on a small residual network with CIFAR-10 as JPEG files of 64 pixels, read as ImageNet is.

Paper:    draft
Command:  python -m tools.train imagenet_resnet50_vrgd_small
Hardware: two CPU cores.
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
