"""VR-LARS on ResNet-50 at 224 pixels in bfloat16: python -m tools.tpu_check tools/tpu_programs/resnet50.py --topology v5e:2x4

A file like this one makes any training known to tools.tpu_check: get_training() is called in the scope of the TPUStrategy and
returns the compiled model, the callback, and a function from a micro-batch size to the spec of what one core is given.
"""

import tensorflow as tf

import tf_simigrad as sg
from models import imagenet_resnet


def element_spec(micro_batch_size):
    images = tf.TensorSpec([micro_batch_size, imagenet_resnet.IMAGE_SIZE, imagenet_resnet.IMAGE_SIZE, 3], tf.float32)
    return images, tf.TensorSpec([micro_batch_size], tf.int32)


def get_training():
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = imagenet_resnet.build()
    optimizer, transform = sg.vr_lars(2.0, weight_decay=1e-4, groups="replicas")
    model.compile(
        optimizer=optimizer,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
    )
    policy = sg.SimiGrad(target_similarity=0.2, min_batch_size=1024, max_batch_size=98_304)
    return model, sg.AdaptiveBatch(policy, transform=transform), element_spec
