"""Strategies by the names that command lines have for them, and what they were made of."""

import platform
from importlib import metadata

import tensorflow as tf

import tf_simigrad as sg


def make_strategy(name, devices, tpu="local"):
    """The strategy of that name; on a machine without a GPU, mirrored over as many logical CPU devices."""
    if name == "default":
        return tf.distribute.get_strategy()
    if name == "tpu":
        return tpu_strategy(tpu)
    if name == "multiworker":
        sg.enable_keras3_multi_worker()
        return tf.distribute.MultiWorkerMirroredStrategy()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus and devices is not None and devices > len(gpus):
        raise ValueError(f"--devices {devices}: this machine has {len(gpus)} GPUs")
    if not gpus:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * (devices or 1))
    kind = "GPU" if gpus else "CPU"
    return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(devices or len(gpus) or 1)])


def tpu_strategy(name):
    """Over all cores of the TPU of that name; "local" is the one of this machine."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (tf.errors.OpError, OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"--strategy tpu: no TPU {name} can be used. What a TPU VM needs stands in tools/tpu_vm.md; without a TPU, "
            f"python -m tools.tpu_check compiles for one. TensorFlow says: {reason}"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def strategy_name(strategy):
    names = {
        tf.distribute.MirroredStrategy: "mirrored",
        tf.distribute.MultiWorkerMirroredStrategy: "multiworker",
        tf.distribute.TPUStrategy: "tpu",
    }
    return names.get(type(strategy), "default")


def versions():
    # tf.keras has no version of its own where it is tf_keras.
    package = tf.keras.Model.__module__.partition(".")[0]
    keras = metadata.version(package)
    found = {"python": platform.python_version(), "tensorflow": tf.__version__, package: keras, "tf_simigrad": sg.__version__}
    return {"keras": "keras3" if keras.startswith("3.") else "tf_keras", "versions": found}
