"""One worker of small trainings, started several times by tools.launch. Arguments: folder, names of scenarios."""

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

import tf_simigrad as sg
from tests.fit import cases
from tests.policies import Cycle
from tf_simigrad.distribute import watch

MICRO, COUNT, EPOCHS = 4, 96, 2
UNEVEN = (20, 12, 24, 8)  # examples of each worker in an epoch


def policy(replicas):
    """Micro-steps 1, 3 and 2 in turn."""
    return Cycle(tuple(MICRO * replicas * steps for steps in (1, 3, 2)))


def vr_lamb():
    return sg.vr_lamb(0.01)[0]


def momentum():
    return tf.keras.optimizers.SGD(0.1, momentum=0.9)


def model_under(strategy, normalised=True, optimizer=momentum, **compile_arguments):
    """A network with BatchNormalization, whose moving statistics differ between replicas; or without."""
    with strategy.scope():
        tf.keras.utils.set_random_seed(7)
        layers = tf.keras.layers
        between = [layers.BatchNormalization(momentum=0.5)] if normalised else []
        model = tf.keras.Sequential([tf.keras.Input((cases.FEATURES,)), layers.Dense(8, activation="tanh"), *between,
                                     layers.Dense(cases.CLASSES)])  # fmt: skip
        model.compile(optimizer(), cases.cross_entropy(tf.keras), metrics=["accuracy"], **compile_arguments)
    return model


def ids(x):
    """Rows of a table, from features."""
    return (np.abs(x) * 20).astype("int32") % 30


def table_under(strategy):
    with strategy.scope():
        tf.keras.utils.set_random_seed(7)
        layers = tf.keras.layers
        model = tf.keras.Sequential([tf.keras.Input((cases.FEATURES,), dtype="int32"), layers.Embedding(30, 3),
                                     layers.Flatten(), layers.Dense(cases.CLASSES)])  # fmt: skip
        model.compile(momentum(), cases.cross_entropy(tf.keras))
    return model


def shares(replicas):
    """Each worker's part of each element, as one process with as many replicas would split it."""
    parts = (a.reshape(-1, replicas, MICRO, *a.shape[1:]).swapaxes(0, 1) for a in cases.arrays(COUNT))
    return list(zip(*(a.reshape(replicas, -1, *a.shape[3:]) for a in parts), strict=True))


def sharded(dataset, policy_name):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy_name]
    return dataset.with_options(options)


def validation():
    return sharded(tf.data.Dataset.from_tensor_slices(cases.arrays(40, seed=11)).batch(8), "DATA")


class Scenarios:
    """Each trains something and leaves its results in a folder of its own."""

    def __init__(self, strategy, folder):
        self.strategy, self.folder = strategy, folder
        self.worker, self.replicas = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync

    def repeated(self):
        # Repeated before it is batched: elements of the whole batch size need not divide a share.
        data = tf.data.Dataset.from_tensor_slices(shares(self.replicas)[self.worker]).repeat()
        return sharded(data.batch(MICRO * self.replicas, drop_remainder=True), "OFF")

    def fit(self, name, model, policy, data, callbacks=(), **arguments):
        adaptive = policy if isinstance(policy, sg.AdaptiveBatch) else sg.AdaptiveBatch(policy)
        logs = model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[adaptive, *callbacks], **arguments).history
        self.save_weights(name, model)
        if self.worker == 0:
            (self.folder / f"{name}.json").write_text(json.dumps({"updates": adaptive.history, "logs": logs}, default=float))

    def save_weights(self, name, model):
        weights = model.get_weights()  # averaged over replicas as it is read: on all workers together
        if self.worker == 0:
            np.savez(self.folder / f"{name}.npz", *weights)

    def steps(self):
        return COUNT // (MICRO * self.replicas)

    def plain(self):
        """With validation, checkpoints and an export."""
        model, adaptive = model_under(self.strategy), sg.AdaptiveBatch(policy(self.replicas))
        checkpoint = sg.EpochCheckpoint(self.folder / "checkpoints", adaptive, keep=1)

        self.fit("plain", model, adaptive, self.repeated(), [checkpoint], steps_per_epoch=self.steps(),
                 validation_data=validation())  # fmt: skip
        sg.export(model, self.folder / "saved_model")
        restored = model_under(self.strategy)
        restored.set_weights([0 * w for w in restored.get_weights()])
        assert checkpoint.restore(restored) == EPOCHS
        self.save_weights("restored", restored)

    def execution(self):
        """Several elements per call."""
        model = model_under(self.strategy, steps_per_execution=3)
        self.fit("execution", model, policy(self.replicas), self.repeated(), steps_per_epoch=self.steps())

    def uneven(self):
        """Workers that run out of data at different moments, which nobody knows beforehand."""
        x, y = shares(self.replicas)[self.worker]
        count = UNEVEN[self.worker]
        data = tf.data.Dataset.from_tensor_slices((x[:count], y[:count])).filter(lambda x, y: True)
        model = model_under(self.strategy, normalised=False)
        self.fit("uneven", model, sg.FixedBatch(2 * MICRO * self.replicas), sharded(data.batch(MICRO * self.replicas), "OFF"))

    def shared(self):
        """All workers read the same."""
        data = tf.data.Dataset.from_tensor_slices(cases.arrays(COUNT)).batch(MICRO * self.replicas)
        model = model_under(self.strategy, normalised=False)
        self.fit("shared", model, sg.FixedBatch(MICRO * self.replicas), sharded(data, "OFF"), steps_per_epoch=6)

    def vrgd(self):
        """VR-LAMB, whose averages live in shards."""
        model = model_under(self.strategy, normalised=False, optimizer=vr_lamb)
        adaptive = sg.AdaptiveBatch(sg.FixedBatch(4 * MICRO * self.replicas), transform=sg.VRGD(ratio_momentum=0.9))
        self.fit("vrgd", model, adaptive, self.repeated(), steps_per_epoch=self.steps())

    def table(self):
        """An embedding whose gradient stays rows."""
        model = table_under(self.strategy)
        adaptive = sg.AdaptiveBatch(policy(self.replicas), dense_table_elements=0)
        x, y = shares(self.replicas)[self.worker]
        data = tf.data.Dataset.from_tensor_slices((ids(x), y)).repeat().batch(MICRO * self.replicas, drop_remainder=True)
        self.fit("table", model, adaptive, sharded(data, "OFF"), steps_per_epoch=self.steps())

    def parting(self):
        """Workers that would take different numbers of steps."""
        try:
            model = model_under(self.strategy)
            self.fit("parting", model, policy(self.replicas), self.repeated(), steps_per_epoch=3 + self.worker)
        except ValueError as error:
            (self.folder / f"parting-{self.worker}.txt").write_text(str(error))

    def _disturbed(self, disturb):
        adaptive = sg.AdaptiveBatch(policy(self.replicas))

        class Disturb(tf.keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                disturb(adaptive, batch)

        callbacks = [adaptive, Disturb()] if self.worker == 1 else [adaptive]
        model = model_under(self.strategy)
        model.fit(self.repeated(), steps_per_epoch=self.steps(), epochs=EPOCHS, verbose=0, callbacks=callbacks)

    def desync(self):
        """After the first update, where 3 micro-steps come next, worker 1 asks for 2."""
        self._disturbed(lambda adaptive, batch: batch == 0 and adaptive.set_batch_size(2 * MICRO * self.replicas))

    def whole(self):
        self._resumable("whole")

    def broken(self):
        """Worker 1 is killed in the third epoch, inside an accumulation; two epochs are saved."""
        self._resumable("resumed", kill_at=(2, 4))

    def resumed(self):
        self._resumable("resumed")

    def _resumable(self, name, kill_at=None):
        """10 elements an epoch: the second leaves a micro-step behind."""
        adaptive = sg.AdaptiveBatch(policy(self.replicas), transform=sg.VRGD(ratio_momentum=0.9))
        model, steps = model_under(self.strategy), 10
        checkpoint = sg.EpochCheckpoint(self.folder / f"checkpoints-{name}", adaptive)
        done, worker = checkpoint.restore(model), self.worker

        class Kill(tf.keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                self.epoch = epoch

            def on_train_batch_end(self, batch, logs=None):
                if worker == 1 and (self.epoch, batch) == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        data = tf.data.Dataset.from_tensor_slices(shares(self.replicas)[self.worker]).repeat().skip(done * steps * MICRO)
        data = sharded(data.batch(MICRO * self.replicas, drop_remainder=True), "OFF")
        callbacks = [adaptive, checkpoint, Kill()]
        model.fit(data, steps_per_epoch=steps, initial_epoch=done, epochs=3, verbose=0, callbacks=callbacks)
        self.save_weights(name, model)
        if self.worker == 0:
            (self.folder / f"{name}.json").write_text(json.dumps({"updates": adaptive.history, "epochs_done": done}))

    def stall(self):
        """Worker 1 lives but does not come."""
        watch.DEFAULT_TIMEOUT_SECONDS = 5.0
        self._disturbed(lambda adaptive, batch: batch == 2 and time.sleep(600))


def main(folder, *names):
    logging.basicConfig(format="%(message)s")
    sg.enable_keras3_multi_worker()
    scenarios = Scenarios(tf.distribute.MultiWorkerMirroredStrategy(), Path(folder))
    for name in names:
        print("scenario", name, flush=True)
        getattr(scenarios, name)()


if __name__ == "__main__":
    main(*sys.argv[1:])
