"""Several local processes as the workers of one training, to try it out: python -m tools.launch --workers N -- COMMAND ...

Each gets a TF_CONFIG with its index and a free port on the loopback address, and its output is printed with its index.
When one ends with an error, the others get --grace seconds to notice by themselves and are then ended.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time


def free_ports(count):
    """Ports that nobody listens on at this moment: all held open until the last one is found, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def environment(ports, index):
    workers = [f"127.0.0.1:{port}" for port in ports]
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
    return {**os.environ, "TF_CONFIG": json.dumps(config), "PYTHONUNBUFFERED": "1"}


def start(command, ports, index):
    """Starts one worker in a process group of its own, so that what it starts ends with it."""
    return subprocess.Popen(
        command,
        env=environment(ports, index),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def relay(process, index):
    for line in process.stdout:
        print(f"[worker {index}] {line}", end="", flush=True)


def end(processes):
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        process.wait()


def wait(processes, grace):
    """Until all have ended, or one has failed and the grace is over. Returns the exit codes; None of one still running."""
    failed_at = None
    while any(p.poll() is None for p in processes):
        if failed_at is None and any(p.poll() not in (None, 0) for p in processes):
            failed_at = time.monotonic()
            codes = {i: p.poll() for i, p in enumerate(processes) if p.poll() not in (None, 0)}
            print(f"tools.launch: worker {min(codes)} ended with exit code {codes[min(codes)]}", flush=True)
        if failed_at is not None and time.monotonic() - failed_at > grace:
            break
        time.sleep(0.1)
    return [p.poll() for p in processes]


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m tools.launch", description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, required=True, help="number of local processes")
    parser.add_argument("--grace", type=float, default=60.0, help="seconds that workers get to end after one has failed")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the command of each worker")
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("nothing to start: write -- and the command after the options")
    if options.workers < 1:
        parser.error(f"--workers {options.workers}: expected 1 or more")
    ports = free_ports(options.workers)
    processes = []
    try:
        processes = [start(command, ports, index) for index in range(options.workers)]
        readers = [threading.Thread(target=relay, args=(p, i), daemon=True) for i, p in enumerate(processes)]
        for reader in readers:
            reader.start()
        codes = wait(processes, options.grace)
    finally:
        end(processes)
    for reader in readers:
        reader.join(timeout=5)
    for index, code in enumerate(codes):
        if code is None:
            print(f"tools.launch: worker {index} was still running and has been ended", flush=True)
    return 0 if all(code == 0 for code in codes) else 1


if __name__ == "__main__":
    sys.exit(main())
