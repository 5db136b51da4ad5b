"""Adaptive batch size for Keras: SimiGrad inside ``model.fit``, by one callback.

The public names load on first use, so that the policies, which are plain Python, can be imported, tested and replayed
where TensorFlow is not installed, and so that a program may choose its Keras (``TF_USE_LEGACY_KERAS``) after importing
this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tf_simigrad._version import __version__

if TYPE_CHECKING:
    from tf_simigrad.compat.addons_aliases import enable_tensorflow_addons
    from tf_simigrad.compat.keras3_workers import enable_keras3_multi_worker
    from tf_simigrad.control.policy import FixedBatch, NoiseScale, Policy, SimiGrad
    from tf_simigrad.fit.callback import AdaptiveBatch
    from tf_simigrad.fit.checkpoint import EpochCheckpoint
    from tf_simigrad.fit.export import export
    from tf_simigrad.optimizers.lamb import LAMB
    from tf_simigrad.optimizers.lars import LARS
    from tf_simigrad.optimizers.transforms import L2, Transform
    from tf_simigrad.optimizers.vr_optimizers import vr_adam, vr_lamb, vr_lars, vr_momentum, vr_sgd
    from tf_simigrad.optimizers.vrgd import VRGD
    from tf_simigrad.records import UpdateRecord, UpdateReport

_HOME = {
    "AdaptiveBatch": "fit.callback",
    "EpochCheckpoint": "fit.checkpoint",
    "FixedBatch": "control.policy",
    "L2": "optimizers.transforms",
    "LAMB": "optimizers.lamb",
    "LARS": "optimizers.lars",
    "NoiseScale": "control.policy",
    "Policy": "control.policy",
    "SimiGrad": "control.policy",
    "Transform": "optimizers.transforms",
    "UpdateRecord": "records",
    "UpdateReport": "records",
    "VRGD": "optimizers.vrgd",
    "enable_keras3_multi_worker": "compat.keras3_workers",
    "enable_tensorflow_addons": "compat.addons_aliases",
    "export": "fit.export",
    "vr_adam": "optimizers.vr_optimizers",
    "vr_lamb": "optimizers.vr_optimizers",
    "vr_lars": "optimizers.vr_optimizers",
    "vr_momentum": "optimizers.vr_optimizers",
    "vr_sgd": "optimizers.vr_optimizers",
}

__all__ = [
    "AdaptiveBatch",
    "EpochCheckpoint",
    "FixedBatch",
    "L2",
    "LAMB",
    "LARS",
    "NoiseScale",
    "Policy",
    "SimiGrad",
    "Transform",
    "UpdateRecord",
    "UpdateReport",
    "VRGD",
    "__version__",
    "enable_keras3_multi_worker",
    "enable_tensorflow_addons",
    "export",
    "vr_adam",
    "vr_lamb",
    "vr_lars",
    "vr_momentum",
    "vr_sgd",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tf_simigrad' has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        module = import_module(f"tf_simigrad.{_HOME[name]}")
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise ImportError(
            f"tf_simigrad.{name} needs TensorFlow, which is not installed: pip install 'tf_simigrad[cpu]' (or [gpu], [tpu])"
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
