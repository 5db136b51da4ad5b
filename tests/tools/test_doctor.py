"""tools.doctor: which combinations it knows, what its self-test notices, and that a child that dies or hangs is told of."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tf_simigrad as sg
from tools import doctor

pytestmark = pytest.mark.one_keras

ROOT = Path(__file__).resolve().parents[2]
NOTHING = dict.fromkeys((*doctor.TENSORFLOWS, *doctor.OTHERS))
MAIN = NOTHING | {
    "python": "3.11.7", "tensorflow": "2.20.0", "keras": "3.15.1", "tf-keras": "2.20.1", "libtpu": "0.0.20", "numpy": "2.4.6",
    "tf-models-official": "2.20.0", "tensorflow-text": "2.20.1", "setuptools": "80.10.2", "strategy": "auto",
}  # fmt: skip
ADDONS = NOTHING | {
    "python": "3.11.7", "tensorflow": "2.15.1", "keras": "2.15.0", "numpy": "1.26.4", "tensorflow-addons": "0.23.0",
    "tf-models-official": "2.15.0", "tensorflow-text": "2.15.0", "setuptools": "80.10.2", "strategy": "auto",
}  # fmt: skip
TPU = MAIN | {"tensorflow": None, "tensorflow-tpu": "2.20.0", "TF_USE_LEGACY_KERAS": "1", "strategy": "tpu"}
BAD = [
    (MAIN | {"python": "3.12.1"}, "Python other than 3.11", "error"),
    (MAIN | {"python": "3.1.1"}, "Python other than 3.11", "error"),
    (MAIN | {"tensorflow": None}, "no TensorFlow", "error"),
    (TPU | {"tensorflow": "2.20.0"}, "several TensorFlows, unpacked over each other", "error"),
    (MAIN | {"tensorflow-cpu": "2.20.0"}, "several TensorFlows, unpacked over each other", "error"),
    (TPU | {"libtpu": "0.0.52"}, "tensorflow-tpu 2.20.0 with a libtpu other than 0.0.20", "error"),
    (TPU | {"libtpu": None}, "tensorflow-tpu without libtpu", "error"),
    (TPU | {"TF_USE_LEGACY_KERAS": "0"}, "Keras 3 on a TPU", "error"),
    (MAIN | {"tf-keras": None, "TF_USE_LEGACY_KERAS": "1"}, "TF_USE_LEGACY_KERAS without tf-keras", "error"),
    (MAIN | {"tf-keras": None, "TF_USE_LEGACY_KERAS": "True"}, "TF_USE_LEGACY_KERAS without tf-keras", "error"),
    (MAIN | {"tf-keras": "2.19.0"}, "tf-keras for another TensorFlow", "error"),
    (MAIN | {"tf-keras": "2.2.0"}, "tf-keras for another TensorFlow", "error"),
    (MAIN | {"KERAS_BACKEND": "jax"}, "KERAS_BACKEND other than tensorflow", "error"),
    (MAIN | {"setuptools": "82.0.0"}, "tf-models-official with setuptools 82+", "error"),
    (MAIN | {"setuptools": "100"}, "tf-models-official with setuptools 82+", "error"),
    (MAIN | {"tensorflow-addons": "0.23.0"}, "tensorflow-addons on a newer TensorFlow", "note"),
    (TPU | {"strategy": "default"}, "tensorflow-tpu, and no TPU in use", "note"),
    (MAIN | {"TF_CONFIG": "{}"}, "TF_CONFIG is set", "note"),
]
GOOD = [
    MAIN,
    ADDONS,
    TPU,
    MAIN | {"tf-keras": None},
    MAIN | {"TF_USE_LEGACY_KERAS": "1", "KERAS_BACKEND": "jax"},
    MAIN | {"KERAS_BACKEND": "tensorflow"},
    MAIN | {"libtpu": "0.0.52"},
    MAIN | {"setuptools": "81.0.0"},
    MAIN | {"setuptools": "82.0.0", "tf-models-official": None},
    MAIN | {"strategy": "mirrored"},
]
PASSED = {"strategy": "default", "replicas": 1, "self_test": {"passed": True, "updates": 3, "failures": []}, "stage": "ending"}


@pytest.mark.parametrize(("found", "name", "severity"), BAD)
def test_each_bad_combination_is_found_by_its_name_and_alone(found, name, severity):
    assert [problem[:2] for problem in doctor.known_problems(found)] == [(name, severity)]


def test_no_combination_is_left_out_here():
    assert {name for _, name, _ in BAD} == {combination[0] for combination in doctor.COMBINATIONS}


@pytest.mark.parametrize("found", GOOD)
def test_nothing_is_found_where_nothing_is_wrong(found):
    assert doctor.known_problems(found) == []


def test_importing_it_imports_no_tensorflow():
    code = "import sys, tools.doctor; print({'tensorflow', 'keras', 'tf_keras'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n", done.stderr


def run(*arguments, **environment):
    """The report of the command as a user runs it: the JSON object is all that it prints."""
    command = [sys.executable, "-m", "tools.doctor", "--json", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def check_passed(report):
    assert set(report) == {"versions", "problems", "strategy", "replicas", "self_test", "advice"}
    assert report["advice"].startswith("All is well")
    tested = report["self_test"]
    assert (tested["passed"], tested["updates"], tested["traces"], tested["failures"]) == (True, 3, 1, [])
    assert 0 <= tested["weight_difference"] <= 1e-5
    assert [s for s in tested["similarities"] if -1 <= s <= 1] == tested["similarities"]
    # It began with 6 micro-steps of 4 examples per replica.
    assert tested["batch_sizes"][0] == 24 * report["replicas"] != tested["batch_sizes"][1]


def test_default_strategy_also_where_another_worker_is_said_to_be():
    config = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}}
    report = run("--strategy", "default", "--keras", "keras3", TF_CONFIG=json.dumps(config))
    check_passed(report)
    assert (report["strategy"], report["replicas"]) == ("default", 1)
    assert "TF_CONFIG is set" in {problem["name"] for problem in report["problems"]}
    assert report["versions"]["tf.keras"].startswith("keras 3.")
    assert report["versions"]["tf_simigrad"] == sg.__version__


def test_mirrored_strategy():
    report = run("--strategy", "mirrored", "--devices", "2", "--keras", "tf_keras")
    check_passed(report)
    assert (report["strategy"], report["replicas"]) == ("mirrored", 2)
    assert report["versions"]["tf.keras"].startswith("tf-keras 2.")


@pytest.fixture
def child(monkeypatch):
    """``child(code)``: takes the place of the child process; the last of its arguments is the file for what it found."""
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
    monkeypatch.setattr(doctor, "installed", MAIN.get)

    def install(code):
        monkeypatch.setattr(doctor, "CHILD", [sys.executable, "-c", f"import json, os, sys, time\n{code}"])

    return install


def wrote(result):
    return f"open(sys.argv[-1], 'w').write(json.dumps({result!r}))\n"


def errors_in(text):
    return [line for line in text.splitlines() if line.startswith("error")]


@pytest.mark.parametrize(("end", "said"), [
    ("os._exit(3)", "exit code 3"),
    ("os.kill(os.getpid(), 9)", "exit code -9 (SIGKILL)"),
])  # fmt: skip
def test_a_child_that_dies_is_told_in_one_line(child, capfd, end, said):
    child(f"print('no JSON')\nprint('first words\\nlast words\\n', file=sys.stderr, flush=True)\n{end}")
    assert doctor.main([]) == 1
    out = capfd.readouterr().out
    advice = doctor.ADVICE["importing TensorFlow"]
    message = f"the self-test ended with {said} while importing TensorFlow; last line of its errors: last words. {advice}"
    assert [line.split(maxsplit=1)[1] for line in errors_in(out)] == [message]
    assert out.splitlines()[-1] == advice
    assert doctor.main(["--json"]) == 1
    report = json.loads(capfd.readouterr().out)
    assert (report["self_test"]["passed"], report["strategy"], report["advice"]) == (False, None, advice)


def test_a_child_that_hangs_is_ended_and_told_in_one_line(child, capfd, monkeypatch):
    monkeypatch.setattr(doctor, "TIMEOUT_SECONDS", 1)
    child(wrote({"stage": "choosing the strategy"}) + "time.sleep(50)")
    started = time.monotonic()
    assert doctor.main([]) == 1
    assert time.monotonic() - started < 25
    (line,) = errors_in(capfd.readouterr().out)
    assert "had not ended after 1 s while choosing the strategy; last line of its errors: none" in line


def test_a_failed_comparison_is_an_error(child, capfd):
    failed = {"passed": False, "updates": 3, "failures": ["the weights are 2.0e-05 away from those of plain SGD"]}
    child(wrote(PASSED | {"self_test": failed}))
    assert doctor.main([]) == 1
    out = capfd.readouterr().out
    assert "the self-test failed: the weights are 2.0e-05 away from those of plain SGD" in errors_in(out)[0]
    assert out.splitlines()[-1] == doctor.ADVICE["comparing"]


def test_a_child_that_says_nothing_has_not_passed(child, capfd):
    child("")
    assert doctor.main([]) == 1
    assert "not finished" in errors_in(capfd.readouterr().out)[0]


def test_notes_leave_all_well(child, capfd, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    child(wrote(PASSED) + "assert 'TF_CONFIG' not in os.environ")
    assert doctor.main([]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert (
        lines[-1].startswith("All is well") and lines[-2].startswith("note") and "tensorflow-cpu       not installed" in lines
    )


def test_an_error_among_the_versions_comes_first_though_the_updates_are_right(child, capfd, monkeypatch):
    monkeypatch.setattr(doctor, "installed", (MAIN | {"tf-keras": "2.19.0"}).get)
    child(wrote(PASSED))
    assert doctor.main(["--json"]) == 1
    report = json.loads(capfd.readouterr().out)
    assert [problem["name"] for problem in report["problems"]] == ["tf-keras for another TensorFlow"]
    assert report["advice"] == report["problems"][0]["advice"] and report["self_test"]["passed"]


def test_keras3_is_an_error_on_a_tpu_that_the_child_found(child, capfd):
    child(wrote(PASSED | {"strategy": "tpu", "replicas": 8, "stage": "training"}) + "sys.exit(1)")
    assert doctor.main(["--json"]) == 1
    report = json.loads(capfd.readouterr().out)
    assert (report["strategy"], report["replicas"]) == ("tpu", 8)
    assert [problem["name"].split(" while")[0] for problem in report["problems"]] == [
        "Keras 3 on a TPU", "the self-test ended with exit code 1"
    ]  # fmt: skip


def test_tf_keras_that_is_asked_for_and_missing(child, capfd, monkeypatch):
    monkeypatch.setattr(doctor, "installed", (MAIN | {"tf-keras": None}).get)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    child(wrote(PASSED))
    assert doctor.main(["--keras", "tf_keras", "--json"]) == 1
    report = json.loads(capfd.readouterr().out)
    assert [problem["name"] for problem in report["problems"]] == ["TF_USE_LEGACY_KERAS without tf-keras"]
    assert report["versions"]["tf.keras"] == "tf-keras"


def test_without_tensorflow_no_child_is_started(child, capfd, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    child(f"open({str(tmp_path / 'started')!r}, 'w')")
    assert doctor.main(["--json"]) == 1
    report = json.loads(capfd.readouterr().out)
    assert [problem["name"] for problem in report["problems"]] == ["no TensorFlow"]
    assert not report["self_test"]["passed"] and not (tmp_path / "started").exists()


@pytest.mark.parametrize("arguments", [
    ["--devices", "2"],
    ["--devices", "0", "--strategy", "mirrored"],
    ["--devices", "2", "--strategy", "tpu"],
])  # fmt: skip
def test_devices_are_those_of_the_mirrored_strategy(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        doctor.main(arguments)
    assert stopped.value.code == 2 and f"--devices {arguments[1]}: expected" in capsys.readouterr().err


@pytest.mark.parametrize(("has_tpu_package", "has_tpu", "gpus", "made"), [
    (True, True, 2, ["tpu"]),
    (True, False, 2, ["tpu", "mirrored"]),
    (True, False, 0, ["tpu", "default"]),
    (False, True, 0, ["default"]),
    (False, True, 1, ["mirrored"]),
])  # fmt: skip
def test_auto_takes_a_tpu_else_gpus_else_the_default(tf, monkeypatch, has_tpu_package, has_tpu, gpus, made):
    from tools import strategies

    asked = []

    def make_strategy(name, devices):
        asked.append(name)
        if name == "tpu" and not has_tpu:
            raise ValueError("no TPU")
        return f"the strategy {name}"

    monkeypatch.setattr(strategies, "make_strategy", make_strategy)
    monkeypatch.setattr(doctor, "installed", {"tensorflow-tpu": "2.20.0" if has_tpu_package else None}.get)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * gpus)
    assert doctor.choose_strategy("auto", None) == f"the strategy {made[-1]}"
    assert asked == made


def test_an_error_of_many_lines_ends_in_one(tf, monkeypatch, tmp_path):
    def choose_strategy(name, devices):
        raise RuntimeError("first line\n  second line")

    monkeypatch.setattr(doctor, "choose_strategy", choose_strategy)
    with pytest.raises(RuntimeError) as raised:
        doctor.main(["--in-child", str(tmp_path / "result.json")])
    assert raised.value.__notes__ == ["RuntimeError: first line second line"]
    assert json.loads((tmp_path / "result.json").read_text()) == {"stage": "choosing the strategy"}


def test_plain_sgd_by_hand():
    x, y = np.eye(4)[:3], np.array([[1.0], [0.0], [0.0]])
    kernel, bias = doctor.sgd([np.zeros((4, 1)), np.zeros(1)], x, y, [(1, 0.1), (2, 0.5)])
    # First: error -1, so 0.2 on kernel[0] and bias. Then: errors 0.2 and 0.2 of two examples, a mean gradient of 0.2 each.
    np.testing.assert_allclose(kernel[:, 0], [0.2, -0.1, -0.1, 0.0], rtol=1e-12)
    np.testing.assert_allclose(bias, [0.0], atol=1e-12)


def record(batch_size, similarity):
    return sg.UpdateRecord(
        examples_seen=0, batch_size=batch_size, micro_steps=1, similarity=similarity, noise_scale=None, learning_rate=0.1,
        effective_learning_rate=0.1, skipped=False
    )  # fmt: skip


RIGHT = {
    "history": [record(24, 0.9), record(20, -0.1), record(20, 0.2)], "traces": 1, "loss": 0.5,
    "weights": [np.ones((4, 1)), np.ones(1)], "expected": [np.ones((4, 1)) + 5e-6, np.ones(1)],
}  # fmt: skip


def test_right_updates_pass():
    judged = doctor.judge(**RIGHT)
    assert judged["passed"] and judged["failures"] == []
    assert judged["weight_difference"] == pytest.approx(5e-6)


@pytest.mark.parametrize(("wrong", "failure"), [
    ({"weights": [np.ones((4, 1)), np.ones(1) + 2e-5]}, "the weights are 2.0e-05 away from those of plain SGD"),
    ({"weights": [np.ones((4, 1)) - [[0], [0], [0], [2e-5]], np.ones(1)]}, "the weights are 2.5e-05 away"),
    ({"weights": [np.full((4, 1), np.nan), np.ones(1)]}, "the weights are nan away"),
    ({"weights": [np.ones((4, 1)), np.full(1, np.nan)]}, "the weights are nan away"),
    ({"loss": float("nan")}, "the loss is nan"),
    ({"traces": 2}, "2 traces instead of 1"),
    ({"history": RIGHT["history"][:2]}, "2 updates instead of 3"),
    ({"history": [record(24, 0.9)] * 3}, "the batch size stayed at [24, 24, 24]"),
    ({"history": [*RIGHT["history"][:2], record(20, None)]}, "the similarities are [0.9, -0.1, None]"),
    ({"history": [*RIGHT["history"][:2], record(20, 1.5)]}, "the similarities are [0.9, -0.1, 1.5]"),
])  # fmt: skip
def test_each_wrong_thing_is_noticed(wrong, failure):
    judged = doctor.judge(**RIGHT | wrong)
    assert not judged["passed"]
    assert len(judged["failures"]) == 1 and judged["failures"][0].startswith(failure)
    json.dumps(judged, allow_nan=False)


@pytest.fixture
def tf32_as_before(tf):
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    yield
    tf.config.experimental.enable_tensor_float_32_execution(before)


@pytest.mark.parametrize("wrong_rate", [False, True])
def test_the_self_test_compares_with_plain_sgd(strategies, tf32_as_before, monkeypatch, wrong_rate):
    right = doctor.sgd
    if wrong_rate:
        monkeypatch.setattr(doctor, "sgd", lambda w, x, y, updates: right(w, x, y, [(size, 1.001 * r) for size, r in updates]))
    judged = doctor.self_test(strategies(1))
    assert judged["passed"] is not wrong_rate
    assert len(judged["failures"]) == wrong_rate
