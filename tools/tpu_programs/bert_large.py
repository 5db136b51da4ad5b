"""VR-LAMB on pretraining of BERT-Large at length 128 in bfloat16, for tools.tpu_check.

See resnet50.py beside it for what such a file has to say.
"""

import functools

import tensorflow as tf

import tf_simigrad as sg
from models import bert


def pretraining(size, length, predictions):
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = bert.pretrainer(bert.encoder(bert.SIZES[size], positions=length))
    optimizer, transform = sg.vr_lamb(1e-3, weight_decay=0.01, groups="replicas")
    model.compile(optimizer=optimizer)
    policy = sg.SimiGrad(target_similarity=0.8, min_batch_size=1024, max_batch_size=65_536)
    adaptive = sg.AdaptiveBatch(policy, transform=transform, loss_fn=bert.pretraining_loss)
    return model, adaptive, functools.partial(bert.element_spec, length=length, predictions=predictions)


def get_training():
    return pretraining("large", length=128, predictions=20)
