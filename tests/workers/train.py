"""One worker of a small training, started several times by tools.launch. Arguments: folder, mode."""

import json
import os
import signal
import sys

import numpy as np
import tensorflow as tf

import tf_simigrad as sg
from tests.fit import cases
from tests.policies import Cycle

MICRO, COUNT, EPOCHS = 4, 96, 2


def policy(replicas):
    """Micro-steps 1, 3 and 2 in turn."""
    return Cycle(tuple(MICRO * replicas * steps for steps in (1, 3, 2)))


def model_under(strategy):
    """A network with BatchNormalization, whose moving statistics differ between replicas."""
    with strategy.scope():
        tf.keras.utils.set_random_seed(7)
        layers = tf.keras.layers
        model = tf.keras.Sequential([tf.keras.Input((cases.FEATURES,)), layers.Dense(8, activation="tanh"),
                                     layers.BatchNormalization(momentum=0.5), layers.Dense(cases.CLASSES)])  # fmt: skip
        model.compile(tf.keras.optimizers.SGD(0.1, momentum=0.9), cases.cross_entropy(tf.keras), metrics=["accuracy"])
    return model


def share_of(worker, replicas):
    """This worker's part of each element, as one process with as many replicas would split it."""
    parts = (a.reshape(-1, replicas, MICRO, *a.shape[1:])[:, worker] for a in cases.arrays(COUNT))
    return tf.data.Dataset.from_tensor_slices(tuple(a.reshape(-1, *a.shape[2:]) for a in parts))


def main(folder, mode):
    sg.enable_keras3_multi_worker()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    worker, replicas = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
    model = model_under(strategy)
    adaptive = sg.AdaptiveBatch(policy(replicas))

    class Disturb(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 0 and worker == 1 and mode == "desync":  # after the first update, where 3 micro-steps come next
                adaptive.set_batch_size(2 * MICRO * replicas)
            if batch == 2 and worker == 1 and mode == "kill":
                os.kill(os.getpid(), signal.SIGKILL)

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # Repeated before it is batched: elements of the whole batch size need not divide a share.
    data = share_of(worker, replicas).repeat().batch(MICRO * replicas, drop_remainder=True).with_options(options)
    steps = COUNT // (MICRO * replicas)
    logs = model.fit(data, steps_per_epoch=steps, epochs=EPOCHS, verbose=0, callbacks=[adaptive, Disturb()]).history
    weights = model.get_weights()  # averaged over replicas as it is read: on all workers together
    if worker == 0:
        np.savez(os.path.join(folder, "weights.npz"), *weights)
        with open(os.path.join(folder, "history.json"), "w") as file:
            json.dump({"updates": adaptive.history, "loss": logs["loss"], "accuracy": logs["accuracy"]}, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
