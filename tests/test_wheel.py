"""What pip installs: the package and its licence, nothing else, with the extras that setup.py names."""

import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

pytestmark = pytest.mark.one_keras

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    copy = tmp_path_factory.mktemp("wheel") / "copy"
    copy.mkdir()
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    for folder in ("tf_simigrad", "models", "configs", "tools", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", copy / "dist", copy],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = (copy / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture
def metadata(wheel) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_holds_the_package_and_nothing_else(wheel):
    expected = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tf_simigrad").rglob("*.py")} | {"tf_simigrad/py.typed"}
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected


def test_holds_the_licence(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("/LICENSE"))
    assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()


def test_metadata(metadata):
    assert metadata["Name"].replace("-", "_") == "tf_simigrad"
    assert metadata["License"] == "Apache-2.0"
    assert set(metadata["Requires-Python"].split(",")) == {">=3.11", "<3.12"}
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert set(metadata.get_all("Provides-Extra")) == {"addons", "cpu", "gpu", "models", "plot", "test", "tpu"}


def test_only_numpy_is_required(metadata):
    assert [requirement for requirement in metadata.get_all("Requires-Dist") if "extra ==" not in requirement] == ["numpy"]
