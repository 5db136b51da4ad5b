"""The names a user sees: complete, documented, typed, and with examples that run."""

import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tf_simigrad as sg

ROOT = Path(__file__).resolve().parents[1]
NAMES = [
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
OBJECTS = [name for name in NAMES if name != "__version__"]


def parameters(function: object) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]


def public_methods(cls: type) -> Iterator[tuple[str, object]]:
    """The functions that a class itself defines: public methods, properties, and its own `__init__` and `__call__`."""
    for name, member in vars(cls).items():
        if isinstance(member, property):
            member = member.fget
        elif isinstance(member, classmethod | staticmethod):
            member = member.__func__
        if inspect.isfunction(member) and (not name.startswith("_") or name in ("__init__", "__call__")):
            yield name, member


def examples(docstring: str | None) -> list[str]:
    """The fenced Python blocks of a docstring."""
    blocks = re.findall(r"^([ \t]*)```python\n(.*?)^[ \t]*```", docstring or "", flags=re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(body) for _, body in blocks]


def run_example(source: str, folder: Path) -> None:
    """Runs one block in a fresh namespace, from a file: AutoGraph and tracebacks read the source there."""
    file = folder / "example.py"
    file.write_text(source, encoding="utf-8")
    exec(compile(source, str(file), "exec"), {"__name__": "example", "tf": tf, "np": np, "sg": sg})


def documentation_faults(name: str, thing: object) -> list[str]:
    """What the documentation and the annotations of a public class or function lack."""
    faults = []
    doc = inspect.cleandoc(thing.__doc__ or "")
    if not doc or doc.startswith(f"{name}("):
        faults.append(f"{name} has no docstring of its own")
    if parameters(thing) and not re.search(r"^Args:$", doc, flags=re.MULTILINE):
        faults.append(f"{name} takes arguments and has no 'Args:'")
    for parameter in parameters(thing):
        if not re.search(rf"^\s+\*{{0,2}}{parameter.name}( \(.*\))?:", doc, flags=re.MULTILINE):
            faults.append(f"{name} does not document {parameter.name}")
    if not examples(doc):
        faults.append(f"{name} has no example")
    functions = public_methods(thing) if inspect.isclass(thing) else [("", thing)]
    for method, function in functions:
        where = f"{name}.{method}".rstrip(".")
        if method and not method.startswith("__") and not inspect.getdoc(getattr(thing, method)):
            faults.append(f"{where} has no docstring")
        for parameter in parameters(function):
            if parameter.annotation is inspect.Parameter.empty:
                faults.append(f"{where} does not annotate {parameter.name}")
        if method != "__init__" and inspect.signature(function).return_annotation is inspect.Signature.empty:
            faults.append(f"{where} does not annotate what it returns")
    return faults


def run_python(source: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(source)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_list_of_names():
    assert sg.__all__ == NAMES
    assert set(NAMES) <= set(dir(sg))


def test_the_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+", sg.__version__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="NoSuchName"):
        sg.NoSuchName  # noqa: B018


@pytest.mark.parametrize("name", OBJECTS)
def test_documentation_and_annotations(name):
    assert documentation_faults(name, getattr(sg, name)) == []


@pytest.mark.parametrize("name", OBJECTS)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    thing = getattr(sg, name)
    methods = [function for _, function in public_methods(thing)] if inspect.isclass(thing) else []
    for documented in (thing, *methods):
        for source in examples(inspect.getdoc(documented)):
            run_example(source, tmp_path)


@pytest.mark.one_keras
@pytest.mark.parametrize("name", OBJECTS)
def test_the_readme_mentions(name):
    assert re.search(rf"\b{name}\b", (ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.mark.one_keras
def test_policies_need_no_tensorflow():
    result = run_python("""
        import sys
        for name in ("tensorflow", "keras", "tf_keras", "numpy"):
            sys.modules[name] = None
        import tf_simigrad.control
        import tf_simigrad as sg
        sg.SimiGrad, sg.NoiseScale, sg.FixedBatch, sg.Policy, sg.UpdateReport, sg.UpdateRecord
        try:
            sg.AdaptiveBatch
        except ImportError as error:
            print(error)
        """)
    assert result.returncode == 0, result.stderr
    assert "TensorFlow" in result.stdout


@pytest.mark.one_keras
def test_importing_the_package_leaves_tensorflow_unloaded():
    result = run_python("""
        import sys
        import tf_simigrad
        sys.exit("tensorflow" in sys.modules)
        """)
    assert result.returncode == 0, result.stderr


@pytest.mark.one_keras
def test_missing_documentation_is_reported():
    class Bare:
        def __init__(self, size):
            self.size = size

        def double(self):
            return 2 * self.size

    assert documentation_faults("Bare", Bare) == [
        "Bare has no docstring of its own",
        "Bare takes arguments and has no 'Args:'",
        "Bare does not document size",
        "Bare has no example",
        "Bare.__init__ does not annotate size",
        "Bare.double has no docstring",
        "Bare.double does not annotate what it returns",
    ]


@pytest.mark.one_keras
def test_complete_documentation_is_accepted():
    class Sized:
        """A thing with a size.

        Args:
            size: In examples.

        Example:

        ```python
        assert np.ones(2).size == 2
        ```
        """

        def __init__(self, size: int) -> None:
            self.size = size

        @property
        def doubled(self) -> int:
            """Twice the size."""
            return 2 * self.size

    assert documentation_faults("Sized", Sized) == []


@pytest.mark.one_keras
def test_a_failing_example_fails(tmp_path):
    (good, bad) = examples("""
        ```python
        x = tf.constant(1.0)
        ```

        ```python
        assert x == 1.0
        ```
        """)
    run_example(good, tmp_path)
    with pytest.raises(NameError, match="'x'"):
        run_example(bad, tmp_path)
