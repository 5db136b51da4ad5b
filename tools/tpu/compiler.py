"""libtpu's compiler, which compiles for a TPU that is described and not there."""

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tools.tpu import compiler_process

# What a core's programs and data may take, in bytes: as libtpu 0.0.20 says where a program is too large (tests/tools/tpu).
CORE_MEMORY = {
    "v2": 8_031_000_000,
    "v3": 16_620_000_000,
    "v4": 16_370_000_000,
    "v5e": 16_910_000_000,
    "v6e": 33_550_000_000,
}
ENVIRONMENT = {
    # Without it libtpu asks the metadata server of the cloud for minutes.
    "TPU_SKIP_MDS_QUERY": "1",
    # Or it warns that they are not set.
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    # Two processes may compile at the same time.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}
INSTALL = "pip install libtpu==0.0.20"


class CompileError(ValueError):
    """A program that does not compile, with the compiler's reason in its first line."""


class DoesNotFitError(CompileError):
    """A program that needs more memory than a core has."""


class Compiled(NamedTuple):
    """A compiled program: bytes per core (arguments, temporaries, code, outputs that are no arguments), and its HLO."""

    argument: int
    temp: int
    code: int
    output: int
    optimised: bytes


def library():
    """The path of libtpu.so: TPU_LIBRARY_PATH, or that of the installed package."""
    named = os.environ.get("TPU_LIBRARY_PATH")
    if named:
        if not Path(named).is_file():
            raise ImportError(f"TPU_LIBRARY_PATH={named}: there is no such file")
        return Path(named)
    found = importlib.util.find_spec("libtpu")
    if found is None:
        raise ImportError(f"the TPU's compiler is not installed: {INSTALL}")
    return Path(next(iter(found.submodule_search_locations))) / "libtpu.so"


def version():
    try:
        return importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        return f"at {library()}"


def core_memory(topology):
    """Bytes that a core of this topology has for programs and data, or None where they are not known."""
    return CORE_MEMORY.get(topology.partition(":")[0])


def cores(topology):
    """How many cores a topology such as "v5e:2x4" has."""
    try:
        return run({"topology": topology, "program": None}, None, 120)[0]["cores"]
    except CompileError as error:
        examples = "v2:2x2, v3:2x2, v4:2x2x1, v5e:2x4, v6e:2x4, v5e:16x16"
        raise CompileError(f"--topology {topology}: {error}. Topologies are named like {examples}") from None


def compile_program(hlo, topology, optimise=True, timeout=1800):
    """Compiles a serialized HloModuleProto for all cores of a topology.

    Raises:
        DoesNotFitError: If it needs more memory than a core has.
        CompileError: If it does not compile for another reason.
    """
    result, optimised = run({"topology": topology, "program": "program", "optimise": optimise}, hlo, timeout)
    memory = result["memory"]
    return Compiled(memory["argument"], memory["temp"], memory["generated_code"], memory["output"] - memory["alias"], optimised)


def run(request, hlo, timeout):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "request.json").write_text(json.dumps({**request, "library": str(library())}))
        if hlo is not None:
            (folder / "program").write_bytes(hlo)
        command = [sys.executable, compiler_process.__file__, name]
        try:
            done = subprocess.run(
                command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, errors="replace", timeout=timeout
            )
        except subprocess.TimeoutExpired:
            raise CompileError(f"the compiler has not finished within {timeout} s") from None
        if not (folder / "result.json").is_file():
            raise CompileError(f"the compiler ended its process ({done.returncode}): {first_line(done.stderr)}")
        result = json.loads((folder / "result.json").read_text())
        if "error" in result:
            raise readable(result["error"])
        optimised = folder / "optimised"
        return result, optimised.read_bytes() if optimised.is_file() else b""


def first_line(text):
    return next((line for line in text.splitlines() if line.strip()), "it said nothing")


def readable(message):
    """The compiler's message as an error: of memory with the figures, of anything else its first line."""
    used = re.search(r"Used (\S+) of (\S+) hbm", message)
    if used:
        largest = re.search(r"1\. Size: (\S+).*?Shape: (\S+)", message, re.DOTALL)
        what = f"; its largest allocation is {largest[2]}, {largest[1]}" if largest else ""
        return DoesNotFitError(f"it does not fit: {used[1]} of {used[2]} per core are used{what}")
    allocation = re.search(r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\).*?shape = '([^']+)'", message)
    if allocation:
        size, limit = (int(allocation[i]) / 2**30 for i in (1, 2))
        return DoesNotFitError(f"it does not fit: {allocation[3]} alone needs {size:.2f}G of {limit:.2f}G per core")
    return CompileError(first_line(message))
