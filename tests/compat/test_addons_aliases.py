"""TensorFlow Addons is imported where it can be, and the names it looks for stand there only meanwhile."""

import importlib.util
import sys
from types import ModuleType

import pytest

from tf_simigrad.compat import addons_aliases, keras_private
from tf_simigrad.compat.addons_aliases import enable_tensorflow_addons

pytestmark = pytest.mark.usefixtures("tf")

NAMES = ("keras.src.engine", "keras.src.engine.keras_tensor")
only_tf_keras = pytest.mark.skipif(keras_private.name_of_keras() != "tf_keras", reason="the aliases are for tf_keras")


@pytest.fixture
def forgotten(monkeypatch):
    """As if nobody had imported Addons yet; what a test imports in its place is forgotten again."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorflow_addons"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.skipif(keras_private.KERAS_3, reason="Addons was made for Keras 2")
@pytest.mark.skipif(importlib.util.find_spec("tensorflow_addons") is None, reason="TensorFlow Addons is not installed")
@pytest.mark.filterwarnings("ignore::UserWarning:tensorflow_addons")
def test_addons_is_imported(tf):
    for _ in range(2):
        enable_tensorflow_addons()
    import tensorflow_addons as tfa

    assert isinstance(tfa.optimizers.LAMB(0.1), tf.keras.optimizers.legacy.Optimizer)
    assert [name for name in NAMES if name in sys.modules and keras_private.name_of_keras() == "tf_keras"] == []


@only_tf_keras
@pytest.mark.parametrize("fails", [False, True])
def test_the_aliases_lead_to_tf_keras_and_are_removed(monkeypatch, forgotten, tmp_path, fails):
    source = "import sys\nfrom keras.src.engine import keras_tensor\nsys.seen = keras_tensor.__name__\n"
    (tmp_path / "tensorflow_addons.py").write_text(source + ("import nothing_of_this_name\n" if fails else ""))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "seen", None, raising=False)
    if fails:
        with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):
            enable_tensorflow_addons()
    else:
        enable_tensorflow_addons()
        del sys.modules["tensorflow_addons"]
    assert sys.seen == "tf_keras.src.engine.keras_tensor"
    assert [name for name in NAMES if name in sys.modules] == []


@only_tf_keras
def test_a_name_that_is_taken_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "taken", taken := ModuleType("taken"))
    assert addons_aliases._add({"taken": ModuleType("ours")}) == []
    assert sys.modules["taken"] is taken


@only_tf_keras
def test_addons_that_is_not_installed(monkeypatch, forgotten, tmp_path):
    monkeypatch.setattr(addons_aliases, "_ADDONS", "tensorflow_addons_of_nobody")
    with pytest.raises(ModuleNotFoundError, match="pip install tensorflow-addons") as raised:
        enable_tensorflow_addons()
    assert raised.value.name == "tensorflow_addons_of_nobody"


@pytest.mark.skipif(not keras_private.KERAS_3, reason="refused under Keras 3")
def test_keras_3_is_refused():
    with pytest.raises(ValueError, match="TF_USE_LEGACY_KERAS=1"):
        enable_tensorflow_addons()


@pytest.mark.skipif(keras_private.name_of_keras() != "Keras 2", reason="Keras 2 needs no alias")
def test_keras_2_needs_no_alias(monkeypatch):
    monkeypatch.setattr(addons_aliases, "_add", None)
    enable_tensorflow_addons()
