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
LOCKS = ("requirements", "requirements-test", "requirements-addons", "requirements-tpu")
# tensorflow-tpu is in its place: uv resolves with it, and leaves it out of the lock.
LEFT_OUT = {"requirements-tpu": {"tensorflow"}}


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


def lock_of(name: str) -> str:
    return (ROOT / "tools" / f"{name}.lock").read_text(encoding="utf-8")


def wanted_by(name: str) -> list[str]:
    """The requirements of an input file, without those that it takes from another."""
    lines = (ROOT / "tools" / f"{name}.in").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith(("#", "-r "))]


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_of_a_lock_has_hashes(name):
    requirements = [entry for entry in re.split(r"\n(?=[^\s#])", lock_of(name)) if "==" in entry and not entry.startswith("#")]
    assert len(requirements) > 50
    assert [entry.split()[0] for entry in requirements if not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)] == []


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_index(name):
    assert re.findall(r"https?:|--(?:extra-)?index-url|--find-links", lock_of(name)) == []


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_holds_what_its_input_wants(name):
    lock, wanted = pins(lock_of(name)), wanted_by(name)
    assert {re.split("[=<>]", requirement)[0] for requirement in wanted} - set(lock) == LEFT_OUT.get(name, set())
    pinned = {package: pin for package, pin in pins("\n".join(wanted)).items() if package in lock}
    assert {package: lock[package] for package in pinned} == pinned


def test_the_tests_have_the_very_versions_of_the_quick_start():
    """Or `use_environment` could not complete the one to the other."""
    tests = pins(lock_of("requirements-test"))
    assert {package: tests.get(package) for package in pins(lock_of("requirements"))} == pins(lock_of("requirements"))
    assert "-r requirements.in" in (ROOT / "tools" / "requirements-test.in").read_text(encoding="utf-8").splitlines()


def test_the_pins_are_those_of_the_extras():
    of = {name: pins("\n".join(requirements)) for name, requirements in extras().items()}
    assert pins("\n".join(wanted_by("requirements"))) == of["cpu"]
    assert pins("\n".join(wanted_by("requirements-addons"))) == of["addons"]
    beside = {**of["models"], "libtpu": of["tpu"]["libtpu"], "tensorflow-addons": of["addons"]["tensorflow-addons"]}
    of_tests = pins("\n".join(wanted_by("requirements-test")))
    assert {package: pin for package, pin in of_tests.items() if package not in ("jax", "jaxlib")}.items() <= beside.items()
    on_tpu = {**of["cpu"], **of["models"], **of["tpu"]}
    assert pins("\n".join(wanted_by("requirements-tpu"))).items() <= on_tpu.items()


def test_the_lock_holds_the_test_extra():
    assert set(extras()["test"]) <= set(pins(lock_of("requirements")))


@pytest.fixture
def run_script(tmp_path):
    """Runs a copy of a script whose `python` is a stand-in: it writes down its call and fails where the call matches `fail`."""
    tools, binaries, calls = tmp_path / "tools", tmp_path / "bin", tmp_path / "calls"
    tools.mkdir()
    binaries.mkdir()
    (tools / SOURCED).write_text(
        f'root="{tmp_path}"\nuse_environment() {{ PATH="{binaries}:$PATH"; echo "environment $*" >>"{calls}"; }}\n'
    )
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
    assert calls[0] == "environment .venv requirements.lock requirements-test.lock"
    assert "legacy=unset -m coverage run -m pytest -rs --durations=15" in calls
    assert "legacy=1 -m coverage run -m pytest -rs --durations=15 -m not one_keras and not slow" in calls
    assert calls[-1].endswith("-m coverage report")


def test_the_addons_set_runs_the_tests_that_know_their_keras(run_script):
    code, printed, calls = run_script("test.sh", "--addons", "-k", "some name")
    assert code == 0
    assert calls == [
        "environment .venv-addons requirements-addons.lock",
        "legacy=unset -m pytest -rs --durations=15 -m not one_keras and not slow "
        "--ignore=tests/tools --ignore=tests/models --ignore=tests/configs --ignore=tests/tpu --ignore=tests/workers "
        "-k some name",
    ]
    assert printed[-2:] == ["", "addons    ok      3 passed in 0.10s"]


@pytest.mark.parametrize(("arguments", "status", "code"), [((), 1, 1), ((), 5, 1), (("tests/control",), 5, 0)])
def test_a_failure_on_the_addons_set(run_script, arguments, status, code):
    assert run_script("test.sh", "--addons", *arguments, fail="*pytest*", status=status)[0] == code


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
        ".venv requirements.lock",
        f"-m tools.train quickstart_digits --strategy mirrored --devices 2 --output {tmp_path}/{out}",
        f"-m tools.check_saved_model {tmp_path}/{out}",
    ]
    assert printed[-1] == f"The results are in {tmp_path}/{out}:"


@pytest.mark.parametrize(("fail", "calls_made"), [("*tools.train*", 2), ("*tools.check_saved_model*", 3)])
def test_a_failing_quick_start_says_so(run_script, fail, calls_made):
    code, _, calls = run_script("quickstart.sh", fail=fail)
    assert code == 1
    assert len(calls) == calls_made


@pytest.mark.parametrize(("main", "addons"), [(0, 0), (1, 0), (0, 1)])
def test_continuous_integration_runs_both_sets_and_sums_them_up(tmp_path, main, addons):
    for folder in ("tools", ".ci"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / "tools" / "test.sh").write_text(
        f'echo "arguments: $*"\ncase "$1" in --addons) printf "\\naddons: {addons}\\n"; exit {addons} ;; esac\n'
        f'printf "\\nruff: 0\\nkeras3: {main}\\n"; exit {main}\n'
    )
    done = subprocess.run(
        ["bash", tmp_path / ".ci" / "run", "-k", "name"], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    lines = done.stdout.splitlines()
    assert done.returncode == max(main, addons)
    assert [line for line in lines if line.startswith("arguments")] == ["arguments: -k name", "arguments: --addons -k name"]
    assert lines[-4:] == ["---- both", "ruff: 0", f"keras3: {main}", f"addons: {addons}"]


class Environments:
    """A copy of env.sh whose Python is a stand-in: `calls` are what its environments were made with."""

    def __init__(self, root: Path) -> None:
        self.root, self.log, self.python = root, root / "calls", root / "python3.11"
        (root / "tools").mkdir()
        shutil.copy(ROOT / "tools" / SOURCED, root / "tools")
        for lock in ("a", "b"):
            (root / "tools" / f"{lock}.lock").write_text(lock)
        self.python.write_text(
            "#!/usr/bin/env bash\n"
            'case "$*" in "-c "*) exit "${WRONG_PYTHON:-0}" ;; esac\n'
            f'echo "$*" >>"{self.log}"\n'
            'case "$*" in\n'
            '"-m venv"*) rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; echo "MADE=$4" >"$4/bin/activate" ;;\n'
            '*"$FAIL"*) echo "no such package"; exit 1 ;;\n'
            "esac\n"
        )
        self.python.chmod(0o755)

    def use(self, *arguments: str, **environment: str) -> tuple[list[str], subprocess.CompletedProcess]:
        self.log.write_text("")
        command = f'set -euo pipefail; . tools/{SOURCED}; use_environment {" ".join(arguments)}; echo "in $MADE"'
        environment = {**os.environ, "PYTHON": str(self.python), "FAIL": "nothing", **environment}
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.root, env=environment, capture_output=True, text=True, timeout=60
        )
        calls = self.log.read_text().replace(str(self.root), "ROOT").splitlines()
        return [call for call in calls if not call.endswith("-e ROOT")], done


VENV = "-m venv --clear ROOT/.venv"
INSTALL_A = "-m pip install --require-hashes --no-deps -r ROOT/tools/a.lock"
INSTALL_B = "-m pip install --require-hashes --no-deps -r ROOT/tools/b.lock"


@pytest.fixture
def environments(tmp_path):
    return Environments(tmp_path)


def test_an_environment_is_made_once(environments):
    calls, done = environments.use(".venv", "a.lock")
    assert calls == [VENV, INSTALL_A]
    assert "making .venv from tools/a.lock" in done.stdout
    assert done.stdout.endswith(f"in {environments.root}/.venv\n")
    calls, done = environments.use(".venv", "a.lock")
    assert (calls, done.stdout) == ([], f"in {environments.root}/.venv\n")
    assert environments.use(".venv-addons", "b.lock")[0] == [VENV + "-addons", INSTALL_B]


def test_the_quick_starts_environment_is_completed_for_the_tests(environments):
    environments.use(".venv", "a.lock")
    calls, done = environments.use(".venv", "a.lock", "b.lock")
    assert calls == [INSTALL_B]
    assert "completing .venv from tools/b.lock" in done.stdout
    assert environments.use(".venv", "a.lock", "b.lock")[0] == []
    assert environments.use(".venv", "a.lock")[0] == []


def test_the_environment_of_the_tests_serves_the_quick_start(environments):
    assert environments.use(".venv", "a.lock", "b.lock")[0] == [VENV, INSTALL_B]
    assert environments.use(".venv", "a.lock")[0] == []


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "tools" / "a.lock").write_text("changed"),
        lambda root: (root / "tools" / "b.lock").write_text("changed"),
        lambda root: (root / ".venv" / "bin" / "python").unlink(),
        lambda root: (root / ".venv" / "stamp").write_text("/of/another/folder 1 1\n"),
    ],
    ids=["first_lock", "last_lock", "no_python", "copied"],
)
def test_an_environment_that_is_out_of_date_is_made_anew(environments, change):
    environments.use(".venv", "a.lock", "b.lock")
    change(environments.root)
    assert environments.use(".venv", "a.lock", "b.lock")[0] == [VENV, INSTALL_B]
    assert environments.use(".venv", "a.lock", "b.lock")[0] == []


def test_a_failed_installation_is_shown_and_tried_again(environments):
    calls, done = environments.use(".venv", "a.lock", FAIL="a.lock")
    assert (calls, done.returncode) == ([VENV, INSTALL_A], 1)
    assert "no such package" in done.stderr
    assert ".venv/install.log" in done.stderr
    assert environments.use(".venv", "a.lock")[0] == [VENV, INSTALL_A]


def test_a_failed_completion_leaves_the_quick_start_as_it_was(environments):
    environments.use(".venv", "a.lock")
    assert environments.use(".venv", "a.lock", "b.lock", FAIL="b.lock")[1].returncode == 1
    assert environments.use(".venv", "a.lock")[0] == []
    assert environments.use(".venv", "a.lock", "b.lock")[0] == [INSTALL_B]


def test_another_python_is_refused_before_anything_is_removed(environments):
    environments.use(".venv", "a.lock")
    (environments.root / "tools" / "a.lock").write_text("changed")
    calls, done = environments.use(".venv", "a.lock", WRONG_PYTHON="1")
    assert (calls, done.returncode) == ([], 1)
    assert "Python 3.11 is needed" in done.stderr
    assert (environments.root / ".venv" / "stamp").exists()


def test_the_script_for_a_tpu_vm_runs_every_step(run_script):
    code, _, calls = run_script("tpu_vm.sh", "cifar10_vrgd", "/results/a", "--data-dir", "/data")
    assert code == 0
    assert calls == [
        "environment .venv-tpu requirements-tpu.lock",
        "legacy=1 -m tools.doctor --strategy tpu",
        "legacy=1 -m tools.train cifar10_vrgd --strategy tpu --output /results/a --resume --data-dir /data",
        "legacy=1 -m tools.check_saved_model /results/a",
    ]


def test_a_rehearsal_takes_the_same_steps_without_a_tpu(run_script):
    code, _, calls = run_script("tpu_vm.sh", "--rehearse", "digits", "/results/a")
    assert code == 0
    assert [call.split()[3:5] for call in calls[1:3]] == [["--strategy", "default"], ["digits", "--strategy"]]
    assert "--strategy default --output /results/a --resume" in calls[2]


def test_a_tpu_vm_that_the_doctor_refuses_does_not_train(run_script):
    code, _, calls = run_script("tpu_vm.sh", "digits", "/results/a", fail="*doctor*")
    assert code == 1 and len(calls) == 2


def test_the_script_for_a_tpu_vm_says_how_it_is_used(run_script):
    script = ROOT / "tools" / "tpu_vm.sh"
    done = subprocess.run(["bash", script, "digits"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 2 and "Usage: tools/tpu_vm.sh [--rehearse] CONFIG OUT" in done.stderr
