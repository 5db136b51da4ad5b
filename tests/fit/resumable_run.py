"""A training run in a process of its own: may kill itself, may resume. Arguments: folder, replicas, call at which to die."""

import json
import os
import signal
import sys

import numpy as np
import tensorflow as tf

import tf_simigrad as sg
from tests.fit import cases
from tf_simigrad.compat import keras_private


def main(folder, replicas, kill_at):
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.config.experimental.enable_op_determinism()
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]) if replicas == 2 else tf.distribute.get_strategy()
    schedule = tf.keras.optimizers.schedules.CosineDecay(0.1, 30)
    if not keras_private.KERAS_3:
        # Or the state of dropout's random numbers could not be saved.
        tf.keras.backend.experimental.enable_tf_random_generator()
    with strategy.scope():
        model = cases.compiled(tf.keras, cases.Case(cases.with_dropout), tf.keras.optimizers.Adam(schedule))
    adaptive = sg.AdaptiveBatch(
        sg.SimiGrad(target_similarity=0.4, min_batch_size=8, max_batch_size=24), learning_rate_rule="adascale"
    )
    checkpoint = sg.EpochCheckpoint(os.path.join(folder, "checkpoints"), adaptive)
    calls = []

    class Kill(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            calls.append(batch)
            if len(calls) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    data = tf.data.Dataset.from_tensor_slices(cases.arrays(7 * 4)).batch(4, drop_remainder=True)
    model.fit(data, epochs=5, initial_epoch=checkpoint.restore(model), verbose=0, callbacks=[adaptive, Kill(), checkpoint])
    np.savez(os.path.join(folder, "result.npz"), *model.get_weights())
    with open(os.path.join(folder, "history.json"), "w") as file:
        json.dump(adaptive.history, file)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
