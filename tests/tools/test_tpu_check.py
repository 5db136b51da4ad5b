"""tools.tpu_check from end to end: one JSON object or a text, the exit code, and one line for what is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.command_line import refused
from tests.tpu.libtpu import needs_libtpu
from tools import tpu_check

pytestmark = pytest.mark.one_keras

ROOT = Path(__file__).resolve().parents[2]
V5E = ("--topology", "v5e:2x4")
PROGRAMS = {"micro_step", "update", "plain_step"}
# A convolution of 16, one of 32, a dense layer of 10.
GRADIENT_BYTES = 4 * (9 * 16 + 16 + 9 * 16 * 32 + 32 + 512 * 10 + 10)

TRAINING = """
import tensorflow as tf
import tf_simigrad as sg


class OnTheHost(tf.keras.layers.Layer):
    def call(self, x):
        return x + tf.ensure_shape(tf.numpy_function(lambda value: value, [x], tf.float32), x.shape)


def element_spec(micro_batch_size):
    return tf.TensorSpec([micro_batch_size, 4]), tf.TensorSpec([micro_batch_size, 1])


def get_training():
    model = tf.keras.Sequential([tf.keras.Input((4,)), OnTheHost(), tf.keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    return model, sg.AdaptiveBatch(sg.FixedBatch(64)), element_spec
"""


@pytest.fixture
def training_file(tmp_path):
    path = tmp_path / "training.py"
    path.write_text(TRAINING)
    return path


def run(*arguments):
    command = [sys.executable, "-m", "tools.tpu_check", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


def result(*arguments):
    done = run("quickstart_digits", *V5E, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_libtpu
def test_a_fast_check():
    found = result("--fast")
    assert (found["config"], found["topology"], found["cores"]) == ("quickstart_digits", "v5e:2x4", 8)
    assert (found["micro_batch_size"], found["optimised"], found["compiles"]) == (32, False, True)
    assert (found["keras"], found["gradient_bytes"]) == ("tf_keras", GRADIENT_BYTES)
    assert "memory" not in found
    assert set(found["programs"]) == PROGRAMS
    for program in found["programs"].values():
        assert {"seconds", "arguments", "temporaries", "outputs", "code", "elsewhere", "collectives"} == set(program)
        assert all(collective["groups"] == [list(range(8))] for collective in program["collectives"])
    sent = found["sent"]
    assert sent["update"] == sum(collective["bytes"] for collective in found["programs"]["update"]["collectives"])
    assert sent["all_reduce"] == 2 * GRADIENT_BYTES * 7 / 8
    assert sent["ratio"] == sent["update"] / sent["all_reduce"]
    assert 1 <= sent["ratio"] <= 1.05


@needs_libtpu
def test_a_whole_check_says_what_memory_is_needed():
    found = result()
    memory = found["memory"]
    assert (found["optimised"], found["compiles"], memory["fits"]) == (True, True, True)
    assert 0 < memory["data"] + memory["code"] < memory["of_core"]
    assert memory["data"] <= memory["plain"]["data"] + GRADIENT_BYTES + 1e6


@needs_libtpu
def test_the_text_of_what_does_not_compile(training_file):
    done = run(training_file, *V5E, "--fast", "--micro-batch-size", 2)
    assert done.returncode == 1
    reason = rf"no: TPUs lack the operation PyFunc, made in {training_file}, line 8"
    assert done.stdout.count(reason) == 2, done.stdout
    assert "8 cores, 2 examples per core and micro-step" in done.stdout
    assert "Nothing is said about speed or numbers" in done.stdout
    assert "nothing is said about memory" in done.stdout


# ---- what is wrong, in one line


@needs_libtpu
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("quickstart_digits", "--topology", "v5e:5x5"), "--topology v5e:5x5: "),
        (("quickstart_digit", *V5E), "no experiment quickstart_digit; did you mean quickstart_digits?"),
        (("quickstart_digits", *V5E, "--set", "dept=8"), "dept"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, message):
    said_in_one_line(run(*arguments), message)


@needs_libtpu
def test_settings_of_a_file_that_is_no_experiment(training_file):
    said_in_one_line(run(training_file, *V5E, "--set", "depth=8"), f"--set depth=8: {training_file} is no experiment")


def said_in_one_line(done, message):
    assert done.returncode == 2
    assert done.stdout == ""
    *before, line = done.stderr.splitlines()
    # TensorFlow looks for a GPU, and says so.
    assert all("cuda" in said for said in before), done.stderr
    assert line.startswith("tools.tpu_check: error: ") and message in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: CONFIG, --topology"),
        (("quickstart_digits",), "the following arguments are required: --topology"),
        (("quickstart_digits", "--topology", ""), "--topology is empty: expected a name such as v5e:2x4"),
        (("quickstart_digits", *V5E, "--micro-batch-size", 0), "--micro-batch-size 0: expected 1 or more"),
        (("quickstart_digits", *V5E, "--micro-batch-size", "many"), "invalid int value: 'many'"),
        (("quickstart_digits", *V5E, "--fast", "--find-max"), "--find-max needs the memory of optimised programs"),
    ],
)
def test_arguments_that_are_refused(capsys, arguments, message):
    assert message in refused(tpu_check.main, capsys, *arguments)


def test_a_libtpu_that_is_not_there(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(tmp_path / "libtpu.so"))
    said = refused(tpu_check.main, capsys, "quickstart_digits", *V5E)
    assert f"TPU_LIBRARY_PATH={tmp_path / 'libtpu.so'}: there is no such file" in said


@needs_libtpu
def test_a_libtpu_that_is_none(monkeypatch, training_file):
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(training_file))
    said_in_one_line(run("quickstart_digits", *V5E), f"{training_file} is no libtpu: ")
