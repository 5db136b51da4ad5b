"""The scripts that a newcomer runs first, and the files they install from."""

import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from unittest import mock

import pytest

pytestmark = pytest.mark.one_keras

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = [*sorted((ROOT / "tools").glob("*.sh")), ROOT / ".ci" / "run"]
SOURCED = "env.sh"


def pins(text: str) -> dict[str, set[str]]:
    """The versions that a requirements file pins, by package; more than one where a marker chooses."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", text, flags=re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


def extras() -> dict[str, list[str]]:
    with mock.patch("setuptools.setup") as setup:
        runpy.run_path(str(ROOT / "setup.py"))
    return setup.call_args.kwargs["extras_require"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_syntax(script):
    checked = subprocess.run(["bash", "-n", script], capture_output=True, text=True, timeout=20)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("script", [script for script in SCRIPTS if script.name != SOURCED], ids=lambda path: path.name)
def test_can_be_executed(script):
    assert os.access(script, os.X_OK)


def test_every_pin_of_the_lock_has_hashes():
    lock = (ROOT / "tools" / "requirements.lock").read_text(encoding="utf-8")
    requirements = [entry for entry in re.split(r"\n(?=[^\s#])", lock) if "==" in entry and not entry.startswith("#")]
    assert len(requirements) > 50
    assert [entry.split()[0] for entry in requirements if not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)] == []


def test_the_lock_agrees_with_its_input_and_with_setup():
    lock = pins((ROOT / "tools" / "requirements.lock").read_text(encoding="utf-8"))
    wanted = (ROOT / "tools" / "requirements.in").read_text(encoding="utf-8")
    named = {line for line in wanted.splitlines() if line and not line.startswith("#")}
    assert {name.partition("==")[0] for name in named} <= set(lock)
    cpu = pins("\n".join(extras()["cpu"]))
    assert pins(wanted) == cpu
    assert {name: lock[name] for name in cpu} == cpu


def test_the_lock_holds_the_test_extra():
    lock = pins((ROOT / "tools" / "requirements.lock").read_text(encoding="utf-8"))
    assert set(extras()["test"]) <= set(lock)


@pytest.fixture
def run_script(tmp_path):
    """Runs a copy of a script whose `python` is a stand-in: it writes down its call and fails where the call matches `fail`."""
    tools, binaries, calls = tmp_path / "tools", tmp_path / "bin", tmp_path / "calls"
    tools.mkdir()
    binaries.mkdir()
    (tools / SOURCED).write_text(f'root="{tmp_path}"\nPATH="{binaries}:$PATH"\n')
    stand_in = binaries / "python"
    stand_in.write_text(
        "#!/usr/bin/env bash\n"
        f'echo "legacy=${{TF_USE_LEGACY_KERAS:-unset}} $*" >>"{calls}"\n'
        'case "$*" in *pytest*) echo "==== 3 passed in 0.10s ====" ;; esac\n'
        'case "${TF_USE_LEGACY_KERAS:-unset} $*" in $FAIL) exit $STATUS ;; esac\n'
    )
    stand_in.chmod(0o755)

    def run(script: str, *arguments: str, fail: str = "", status: int = 1) -> tuple[int, list[str], list[str]]:
        shutil.copy(ROOT / "tools" / script, tools)
        environment = {**os.environ, "FAIL": fail, "STATUS": str(status), "TF_USE_LEGACY_KERAS": "0"}
        done = subprocess.run(
            ["bash", tools / script, *arguments], cwd=tools, env=environment, capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout.splitlines(), calls.read_text().splitlines()

    return run


def test_the_test_script_runs_every_step_and_says_so(run_script):
    code, printed, calls = run_script("test.sh")
    assert code == 0
    assert [line.split()[:2] for line in printed[-5:]] == [
        [step, "ok"] for step in ("ruff", "mypy", "keras3", "tf_keras", "coverage")
    ]
    assert ["3 passed in 0.10s" in line for line in printed[-5:]] == [False, False, True, True, False]
    assert "legacy=unset -m coverage run -m pytest" in calls
    assert "legacy=1 -m coverage run -m pytest -m not one_keras and not slow" in calls
    assert calls[-1].endswith("-m coverage report")


@pytest.mark.parametrize(
    ("fail", "step"),
    [
        ("*ruff check*", "ruff"),
        ("*mypy tf_simigrad", "mypy"),
        ("unset -m coverage run*", "keras3"),
        ("1 -m coverage run*", "tf_keras"),
        ("*coverage report*", "coverage"),
    ],
)
def test_a_failing_step_fails_the_test_script_and_stops_no_other(run_script, fail, step):
    code, printed, _ = run_script("test.sh", fail=fail)
    assert code == 1
    verdicts = dict(line.split()[:2] for line in printed[-5:])
    assert [name for name, verdict in verdicts.items() if verdict == "FAILED"] == [step]


def test_arguments_reach_both_runs_and_lift_the_floor(run_script):
    code, printed, calls = run_script("test.sh", "-k", "some name", fail="1 -m coverage run*", status=5)
    assert code == 0
    assert sum("-m pytest" in call and call.endswith("-k some name") for call in calls) == 2
    assert calls[-1].endswith("report --fail-under=0")
    assert "not judged" in printed[-1]


def test_nothing_selected_without_arguments_is_a_failure(run_script):
    code, _, _ = run_script("test.sh", fail="1 -m coverage run*", status=5)
    assert code == 1


@pytest.mark.parametrize(
    ("arguments", "out"),
    [((), "run/quickstart"), (("results",), "tools/results"), (("./a folder",), "tools/./a folder")],
)
def test_the_quick_start_takes_its_folder_from_where_it_is_called(run_script, tmp_path, arguments, out):
    (tmp_path / out).mkdir(parents=True)
    code, printed, calls = run_script("quickstart.sh", *arguments)
    assert code == 0
    assert [call.partition(" ")[2] for call in calls] == [
        f"-m tools.train quickstart_digits --strategy mirrored --devices 2 --output {tmp_path}/{out}",
        f"-m tools.check_saved_model {tmp_path}/{out}",
    ]
    assert printed[-1] == f"The results are in {tmp_path}/{out}:"


@pytest.mark.parametrize(("fail", "calls_made"), [("*tools.train*", 1), ("*tools.check_saved_model*", 2)])
def test_a_failing_quick_start_says_so(run_script, fail, calls_made):
    code, _, calls = run_script("quickstart.sh", fail=fail)
    assert code == 1
    assert len(calls) == calls_made
