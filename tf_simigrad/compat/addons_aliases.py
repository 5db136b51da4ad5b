"""Lets TensorFlow Addons be imported beside a TensorFlow that is newer than it, on explicit request."""

import importlib
import sys
from types import ModuleType

import tensorflow as tf

from tf_simigrad.compat import keras_private

_ADDONS = "tensorflow_addons"
_MOVED = ("engine", "engine.keras_tensor")


def enable_tensorflow_addons() -> None:
    """Lets ``import tensorflow_addons`` work under tf_keras. To be called once, before that import.

    TensorFlow Addons ended with TensorFlow 2.15. It imports ``keras.src.engine.keras_tensor``, which since then is to be found
    in tf_keras. This imports Addons while the old name leads there. Its optimizers then train; it is old code on a TensorFlow
    that it was never tested on, as its own warnings say. Does nothing under Keras 2 (TensorFlow 2.15), which needs no alias.

    Raises:
        ValueError: If ``tf.keras`` is Keras 3, for which Addons was never made.
        ModuleNotFoundError: If Addons is not installed.

    Example:

    ```python
    import os

    if os.environ.get("TF_USE_LEGACY_KERAS") == "1":
        sg.enable_tensorflow_addons()
        import tensorflow_addons as tfa

        optimizer = tfa.optimizers.LAMB(1e-3)
    ```
    """
    if keras_private.KERAS_3:
        raise ValueError(
            "TensorFlow Addons does not work with Keras 3. Set TF_USE_LEGACY_KERAS=1 before importing TensorFlow, so that "
            "tf.keras is tf_keras."
        )
    if _ADDONS in sys.modules or keras_private.name_of_keras() == "Keras 2":
        return
    aliases = {f"keras.src.{name}": importlib.import_module(f"tf_keras.src.{name}") for name in _MOVED}
    added = _add(aliases)
    try:
        importlib.import_module(_ADDONS)
    except ModuleNotFoundError as error:
        if error.name != _ADDONS:
            raise
        raise ModuleNotFoundError(
            f"TensorFlow Addons is not installed: pip install tensorflow-addons==0.23.0 (TensorFlow is {tf.__version__})",
            name=_ADDONS,
        ) from error
    finally:
        for name in added:
            del sys.modules[name]


def _add(aliases: dict[str, ModuleType]) -> list[str]:
    """Puts the modules into ``sys.modules`` where the names are free; the names that were."""
    free = [name for name in aliases if name not in sys.modules]
    sys.modules.update({name: aliases[name] for name in free})
    return free
