"""tools.launch: several processes with TF_CONFIG, their output, and what happens when one fails."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.one_keras


def launch(*arguments, code="", timeout=60):
    command = [sys.executable, "-m", "tools.launch", *arguments, *(["--", sys.executable, "-c", code] if code else [])]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def test_each_worker_has_its_index_and_prints_with_it():
    done = launch("--workers", "3", code="import os; print(os.environ['TF_CONFIG'])")
    assert done.returncode == 0
    lines = sorted(done.stdout.splitlines())
    configs = [json.loads(line.split("] ", 1)[1]) for line in lines]
    assert [line[:10] for line in lines] == [f"[worker {i}]" for i in range(3)]
    assert [c["task"] for c in configs] == [{"type": "worker", "index": i} for i in range(3)]
    addresses = configs[0]["cluster"]["worker"]
    assert len(set(addresses)) == 3 and all(c["cluster"]["worker"] == addresses for c in configs)
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_one_that_fails_ends_the_others_after_the_grace():
    code = "import os, sys, time; sys.exit(3) if '\"index\": 1' in os.environ['TF_CONFIG'] else time.sleep(50)"
    done = launch("--workers", "2", "--grace", "1", code=code, timeout=30)
    assert done.returncode == 1
    assert "worker 1 ended with exit code 3" in done.stdout and "worker 0 was still running and has been ended" in done.stdout


@pytest.mark.parametrize(("arguments", "message"), [
    (["--workers", "2"], "nothing to start"),
    (["--workers", "0", "--", "true"], "--workers 0: expected 1 or more"),
    (["--", "true"], "--workers"),
])  # fmt: skip
def test_arguments(arguments, message):
    done = launch(*arguments)
    assert done.returncode == 2 and message in done.stderr
