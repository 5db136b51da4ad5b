"""Bytes per update that real workers send, from the counters of the loopback interface, with the callback and without.

Started by `python -m tools.benchmark wire --workers`: as a program of its own this is one of the workers.
"""

import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tensorflow as tf

import tf_simigrad as sg
from tf_simigrad.distribute.replicas import Replicas
from tf_simigrad.distribute.workers import Workers
from tools import benchmark_wire

COUNTERS = Path("/proc/net/dev")
WARM_UP = 3
IDLE_SECONDS = 3.0


def measure(workers, elements, updates):
    """Starts the workers, and returns what the first of them has measured."""
    if not COUNTERS.is_file():
        raise ValueError(f"--workers: reads the counters of the loopback interface in {COUNTERS}, which is not there")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "tools.launch", "--workers", str(workers), "--"]
        command += [sys.executable, "-m", "tools.benchmark_wire_workers", str(result), str(elements), str(updates)]
        finished = subprocess.run(command, stdout=sys.stderr)
        if finished.returncode:
            raise ValueError("a worker failed: see its output above")
        return json.loads(result.read_text())


class SentBytes(tf.keras.callbacks.Callback):
    """Reads the counter after the warm-up and after the last update, with all workers at the same place."""

    def __init__(self, workers, updates):
        super().__init__()
        self.workers, self.updates, self.counts, self.times = workers, updates, [], []

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 in (WARM_UP, WARM_UP + self.updates):
            self.workers.meet("reading the counters")
            time.sleep(0.2)
            self.counts.append(loopback_bytes())
            self.times.append(time.perf_counter())
            self.workers.meet("having read the counters")

    def per_update(self, idle_per_second):
        """Of one worker on the average, less what the workers send while they do nothing."""
        (first, last), (start, end) = self.counts, self.times
        return (last - first - idle_per_second * (end - start)) / self.updates / self.workers.count


def loopback_bytes():
    """Bytes that the interface has transmitted."""
    line = next(line for line in COUNTERS.read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def idle_per_second(workers):
    workers.meet("the idle time")
    before = loopback_bytes()
    time.sleep(IDLE_SECONDS)
    rate = (loopback_bytes() - before) / IDLE_SECONDS
    workers.meet("the end of the idle time")
    return rate


def work(result, elements, updates):
    sg.enable_keras3_multi_worker()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    workers = Workers(Replicas(strategy))
    sent = {}
    for name in ("plain", "adaptive"):
        model, dataset = benchmark_wire.model_and_data(strategy, elements)
        sent[name] = SentBytes(workers, updates)
        adaptive = [sg.AdaptiveBatch(sg.FixedBatch(workers.count))] if name == "adaptive" else []
        model.fit(dataset, steps_per_epoch=WARM_UP + updates, shuffle=False, verbose=0, callbacks=[*adaptive, sent[name]])
    idle = idle_per_second(workers)
    gradient_elements = sum(math.prod(v.shape) for v in model.trainable_variables)
    figures = {f"{name}_bytes": counter.per_update(idle) for name, counter in sent.items()}
    if workers.index == 0:
        found = {
            "ratio": figures["adaptive_bytes"] / figures["plain_bytes"],
            **figures,
            "all_reduce_bytes": benchmark_wire.plain_bytes(gradient_elements, workers.count),
            "gradient_elements": gradient_elements,
            "updates": updates,
            "idle_bytes_per_second": idle,
            "workers": workers.count,
        }
        Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
