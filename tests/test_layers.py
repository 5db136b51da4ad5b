"""Which layer may know which, read from the source without importing it."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.one_keras

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "tf_simigrad"
FOLDERS = (PACKAGE, "models", "configs", "tools", "tests")
LAYERS = ("control", "core", "distribute", "train", "optimizers", "fit", "report", "compat", "records")

PRIVATE_MODULES = ("tensorflow.python", "keras.src", "tf_keras.src")
# Documented methods of named tuples, private only by their spelling.
PUBLIC_DESPITE_UNDERSCORE = {"_asdict", "_replace", "_fields", "_field_defaults", "_make"}


@dataclass(frozen=True)
class Layer:
    """What one layer may import beside the standard library and itself; `deferred` only inside functions."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...] = ("tensorflow", "numpy")
    deferred: tuple[str, ...] = ()


RULES = {
    "records": Layer(ours=(), theirs=()),
    "control": Layer(ours=("records",), theirs=()),
    "core": Layer(ours=("records", "compat"), theirs=("tensorflow",)),
    "distribute": Layer(ours=("records", "compat", "core")),
    "optimizers": Layer(ours=("core", "compat", "records")),
    "train": Layer(ours=("core", "distribute", "compat", "records", "optimizers.transforms", "optimizers.vrgd")),
    "fit": Layer(ours=tuple(layer for layer in LAYERS if layer != "report")),
    "report": Layer(ours=("records", "control"), theirs=("numpy",), deferred=("matplotlib", "tensorflow")),
    "compat": Layer(ours=(), theirs=("tensorflow", "numpy", "keras", "tf_keras")),
    # The front page names everything; what it loads at import is tested in test_public_api.py.
    "__init__": Layer(ours=LAYERS, theirs=()),
    "_version": Layer(ours=(), theirs=()),
}


@dataclass(frozen=True)
class Import:
    """One imported name with its dots, and whether importing the file leaves it unexecuted."""

    target: str
    line: int
    deferred: bool


def within(name: str, *prefixes: str) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def dynamic_target(node: ast.AST) -> str | None:
    """The module that `import_module("...")` or `__import__("...")` names, where it is a constant."""
    if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
        return None
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return str(node.args[0].value) if called in ("import_module", "__import__") else None


def imports(node: ast.AST, package: list[str], deferred: bool = False) -> Iterator[Import]:
    """The imports under a node of a file whose package is given by its parts; relative ones resolved."""
    for child in ast.iter_child_nodes(node):
        later = deferred or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or is_type_checking(child)
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, later) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = package[: len(package) + 1 - child.level] if child.level else []
            source = [*base, *([child.module] if child.module else [])]
            yield from (Import(".".join([*source, alias.name]), child.lineno, later) for alias in child.names)
        elif target := dynamic_target(child):
            yield Import(target, child.lineno, later)
        yield from imports(child, package, later)


def import_violations(relative: Path, found: list[Import]) -> Iterator[tuple[int, str]]:
    folder = relative.parts[0]
    for one in found:
        if within(one.target, "tools") and folder not in ("tools", "tests"):
            yield one.line, f"{folder} imports {one.target}: nothing but tools and tests imports tools"
        if folder == "models" and within(one.target, *(f"{PACKAGE}.{layer}" for layer in ("train", "distribute", "compat"))):
            yield one.line, f"models imports {one.target}"
        if folder == PACKAGE and within(one.target, "models", "configs", "tests"):
            yield one.line, f"{PACKAGE} imports {one.target}, which is not installed"


def layer_violations(name: str, found: list[Import]) -> Iterator[tuple[int, str]]:
    rule = RULES.get(name)
    if rule is None:
        yield 1, f"no rule for the layer {name!r}"
        return
    ours = [f"{PACKAGE}.{allowed}" for allowed in (name, *rule.ours, "_version")]
    for one in found:
        top = one.target.partition(".")[0]
        if name != "compat" and within(one.target, *PRIVATE_MODULES):
            yield one.line, f"{one.target} is private: only compat imports it"
        if name not in ("distribute", "compat") and within(one.target, "tensorflow.distribute"):
            yield one.line, f"{name} imports {one.target}: only distribute and compat name tf.distribute"
        if top == PACKAGE:
            if not within(one.target, *ours):
                yield one.line, f"{name} imports {one.target}"
        elif top in rule.deferred:
            if not one.deferred:
                yield one.line, f"{name} imports {one.target} outside a function"
        elif top not in sys.stdlib_module_names and top not in (*rule.theirs, *FOLDERS):
            yield one.line, f"{name} imports {one.target}"


def is_own(node: ast.expr) -> bool:
    """Whether the object is the method's own: self, cls, super(), type(self)."""
    if isinstance(node, ast.Call):
        called = getattr(node.func, "id", "")
        return called == "super" or (called == "type" and len(node.args) == 1 and is_own(node.args[0]))
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def is_private(name: str) -> bool:
    dunder = name.startswith("__") and name.endswith("__")
    return name.startswith("_") and not dunder and name not in PUBLIC_DESPITE_UNDERSCORE


def accessed(node: ast.AST) -> tuple[ast.expr, str] | None:
    """The object and the name of an attribute access, written with a dot or with getattr and its kin."""
    if isinstance(node, ast.Attribute):
        return node.value, node.attr
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "setattr", "hasattr", "delattr"):
        match node.args:
            case [owner, ast.Constant(value=str(name)), *_]:
                return owner, name
    return None


def access_violations(name: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    tensorflow = {"tf", "tensorflow"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            tensorflow |= {alias.asname for alias in node.names if alias.name == "tensorflow" and alias.asname}
    for node in ast.walk(tree):
        access = accessed(node)
        if access is None or name == "compat":
            continue
        owner, attribute = access
        written = f"{ast.unparse(owner)}.{attribute}"
        if is_private(attribute) and not is_own(owner):
            yield node.lineno, f"{written} is private: only compat relies on private names"
        if name == "distribute":
            continue
        if attribute == "distribute" and isinstance(owner, ast.Name) and owner.id in tensorflow:
            yield node.lineno, f"{name} names tf.distribute: only distribute and compat do"
        if attribute.startswith("Collective") and getattr(owner, "attr", "") == "raw_ops":
            yield node.lineno, f"{written}: only distribute names a collective"


def violations(root: Path) -> list[str]:
    """Every breach of the rules under a root, as `file:line: what`."""
    files = [*root.glob("*.py"), *(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))]
    reported = []
    for path in sorted(files):
        relative = path.relative_to(root)
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        found = list(imports(tree, list(relative.parent.parts)))
        breaches = list(import_violations(relative, found))
        if relative.parts[0] == PACKAGE:
            name = relative.parts[1].removesuffix(".py")
            breaches += [*layer_violations(name, found), *access_violations(name, tree)]
        reported += [f"{relative.as_posix()}:{line}: {what}" for line, what in breaches]
    return reported


def write(root: Path, file: str, source: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")


def test_the_repository_keeps_the_rules():
    assert violations(ROOT) == []


def test_every_layer_of_the_repository_is_known():
    assert {path.stem for path in (ROOT / PACKAGE).iterdir() if path.suffix == ".py"} | {
        path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")
    } <= set(RULES)


@pytest.mark.parametrize(
    ("file", "source", "what"),
    [
        ("control/policy.py", "import tensorflow as tf", "control imports tensorflow"),
        ("control/plan.py", "import numpy", "control imports numpy"),
        ("control/plan.py", "from tf_simigrad.core import trees", "control imports tf_simigrad.core.trees"),
        ("control/plan.py", "from ..core.trees import dot", "control imports tf_simigrad.core.trees.dot"),
        ("records.py", "def f():\n    import tensorflow", "records imports tensorflow"),
        ("records.py", "from tf_simigrad.control.plan import plan", "records imports tf_simigrad.control.plan.plan"),
        ("core/trees.py", "import numpy as np", "core imports numpy"),
        ("core/trees.py", "from tf_simigrad.distribute import replicas", "core imports tf_simigrad.distribute.replicas"),
        ("core/trees.py", "import tf_simigrad", "core imports tf_simigrad"),
        ("core/trees.py", "import keras", "core imports keras"),
        ("distribute/replicas.py", "from tf_simigrad.train import update", "imports tf_simigrad.train.update"),
        ("train/update.py", "from tf_simigrad.optimizers.trans import x", "imports tf_simigrad.optimizers.trans.x"),
        ("train/update.py", "from tf_simigrad.control.plan import plan", "train imports tf_simigrad.control.plan.plan"),
        ("train/update.py", "from tf_simigrad.optimizers.lars import LARS", "train imports tf_simigrad.optimizers.lars.LARS"),
        ("train/update.py", "from tf_simigrad.fit import callback", "train imports tf_simigrad.fit.callback"),
        ("optimizers/lars.py", "from ..distribute import replicas", "optimizers imports tf_simigrad.distribute.replicas"),
        ("fit/callback.py", "from tf_simigrad.report import html", "fit imports tf_simigrad.report.html"),
        ("fit/callback.py", "import keras", "fit imports keras"),
        ("report/plots.py", "import matplotlib.pyplot as plt", "matplotlib.pyplot outside a function"),
        ("report/logs.py", "import tensorflow as tf", "tensorflow outside a function"),
        ("report/logs.py", "def f():\n    from tf_simigrad.fit import callback", "report imports tf_simigrad.fit.callback"),
        ("compat/tf_private.py", "from tf_simigrad.records import Moments", "compat imports tf_simigrad.records.Moments"),
        ("fit/callback.py", "from tensorflow.python.eager import context", "tensorflow.python.eager.context is private"),
        ("fit/callback.py", "from keras.src import backend", "keras.src.backend is private"),
        ("fit/callback.py", "import importlib\nimportlib.import_module('tf_keras.src')", "tf_keras.src is private"),
        ("fit/callback.py", "import tools.train", "tf_simigrad imports tools.train"),
        ("fit/callback.py", "from models import digits", "imports models.digits, which is not installed"),
        ("fit/callback.py", "import configs", "imports configs, which is not installed"),
        ("fit/callback.py", "from tests import oracles", "imports tests.oracles, which is not installed"),
        ("fit/callback.py", "s = tf.distribute.get_strategy()", "fit names tf.distribute"),
        ("core/trees.py", "import tensorflow as t\ndef f(s: t.distribute.Strategy): ...", "core names tf.distribute"),
        ("train/update.py", "from tensorflow import distribute", "train imports tensorflow.distribute"),
        ("train/update.py", "tf.raw_ops.CollectiveReduceV2()", "only distribute names a collective"),
        ("fit/callback.py", "def f(o): return o._learning_rate", "o._learning_rate is private"),
        ("fit/callback.py", "class A:\n    def f(self): return self.model._tracker", "self.model._tracker is private"),
        ("fit/callback.py", "def f(o): return getattr(o, '_hyper', None)", "o._hyper is private"),
        ("helpers/things.py", "", "no rule for the layer 'helpers'"),
    ],
)
def test_a_breach_in_the_package_is_reported(tmp_path, file, source, what):
    write(tmp_path, f"{PACKAGE}/{file}", source)
    assert what in "\n".join(violations(tmp_path))


@pytest.mark.parametrize(
    ("file", "source", "what"),
    [
        ("models/resnet.py", "from tf_simigrad.train import update", "models imports tf_simigrad.train.update"),
        ("models/resnet.py", "from tf_simigrad.distribute import replicas", "imports tf_simigrad.distribute.replicas"),
        ("models/resnet.py", "import tf_simigrad.compat", "models imports tf_simigrad.compat"),
        ("models/resnet.py", "from tools import train", "models imports tools.train"),
        ("configs/digits.py", "import tools", "configs imports tools"),
        ("setup.py", "import tools", "setup.py imports tools"),
    ],
)
def test_a_breach_beside_the_package_is_reported(tmp_path, file, source, what):
    write(tmp_path, file, source)
    assert what in "\n".join(violations(tmp_path))


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("tf_simigrad/control/policy.py", "import math\nfrom tf_simigrad.records import UpdateReport\nfrom . import plan"),
        ("tf_simigrad/core/trees.py", "import tensorflow as tf\nfrom tf_simigrad import compat, records"),
        ("tf_simigrad/distribute/replicas.py", "from tf_simigrad.core import trees\ntf.distribute.get_strategy()"),
        ("tf_simigrad/train/update.py", "from tf_simigrad.optimizers.transforms import Transform"),
        ("tf_simigrad/fit/callback.py", "class A:\n    def f(self):\n        return super()._f() + type(self)._x + self._y"),
        ("tf_simigrad/fit/callback.py", "def f(record): return record._replace(skipped=True)._asdict(), f.__name__"),
        ("tf_simigrad/report/plots.py", "import numpy\ndef f():\n    import matplotlib.pyplot\n    import tensorflow"),
        ("tf_simigrad/compat/keras_private.py", "from keras.src import backend\ndef f(o): return o._learning_rate"),
        ("tests/test_train.py", "import tools.train\nfrom tf_simigrad.train import update\nfrom keras.src import backend"),
        ("tools/train.py", "from tools import export\nimport models, configs, tf_simigrad"),
        ("models/resnet.py", "import tensorflow as tf\nfrom tf_simigrad.optimizers import lars"),
    ],
)
def test_what_the_rules_allow_is_not_reported(tmp_path, file, source):
    write(tmp_path, file, source)
    assert violations(tmp_path) == []
