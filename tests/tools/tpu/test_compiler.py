"""The compiler: what it is asked, what it says in messages, and what becomes of a process that dies or hangs."""

import functools
import re

import pytest
import tensorflow as tf
from tensorflow.compiler.xla import xla_data_pb2

from tests.tpu.libtpu import CORES, TOPOLOGIES, needs_libtpu
from tf_simigrad.compat import tpu_description
from tools.tpu import compiler, compiler_process

pytestmark = [pytest.mark.one_keras, pytest.mark.usefixtures("tf")]

# As libtpu 0.0.20 says it; the first one goes on with more allocations.
OUT_OF_MEMORY = """XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 16.00G of 15.75G hbm. Exceeded hbm capacity by 258.00M.

Total hbm usage >= 16.25G:
    reserved        258.00M
    program          12.00G
    arguments         4.00G

  Largest program allocations in hbm:

  1. Size: 4.00G
     Operator: op_type="MatMul" op_name="MatMul" source_file="/tmp/program.py" source_line=1221
     Shape: f32[32768,32768]{1,0:T(8,128)}
     Unpadded size: 4.00G
     ==========================

  2. Size: 2.00G
     Shape: f32[32768,16384]{1,0:T(8,128)}
"""  # noqa: E501
ONE_ALLOCATION = (
    "Allocation (size=17179869184) would exceed memory (size=8589934592) :: #allocation24 [shape = 'f32[65536,65536]"
    "{1,0:T(8,128)}', space=hbm, size = 0xffffffffffffffff, tag = 'output of fusion.76.remat2@{}'] :: <no-hlo-instruction>"
)


@pytest.mark.parametrize(
    ("message", "kind", "line"),
    [
        (OUT_OF_MEMORY, compiler.DoesNotFitError, "it does not fit: 16.00G of 15.75G per core are used; its largest allocation "
         "is f32[32768,32768]{1,0:T(8,128)}, 4.00G"),
        ("Used 9.1G of 7.48G hbm.", compiler.DoesNotFitError, "it does not fit: 9.1G of 7.48G per core are used"),
        (ONE_ALLOCATION, compiler.DoesNotFitError,
         "it does not fit: f32[65536,65536]{1,0:T(8,128)} alone needs 16.00G of 8.00G per core"),
        ("\nElement type C128 is not supported on TPU.\nmore", compiler.CompileError,
         "Element type C128 is not supported on TPU."),
        ("", compiler.CompileError, "it said nothing"),
    ],
    ids=["out of memory", "without allocations", "one allocation", "another", "empty"],
)  # fmt: skip
def test_a_message_becomes_one_line(message, kind, line):
    error = compiler.readable(message)
    assert type(error) is kind
    assert str(error) == line


def test_memory_is_known_by_generation():
    assert compiler.core_memory("v5e:2x4") == compiler.core_memory("v5e:16x16") == compiler.CORE_MEMORY["v5e"]
    assert compiler.core_memory("v7x:2x2x1") is None


# ---- where libtpu is


def test_a_missing_libtpu_says_how_to_install_it(monkeypatch):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="not installed: pip install libtpu==0.0.20"):
        compiler.library()


def test_a_library_that_is_named(monkeypatch, tmp_path):
    named = tmp_path / "libtpu.so"
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(named))
    with pytest.raises(ImportError, match=rf"TPU_LIBRARY_PATH={named}: there is no such file"):
        compiler.library()
    named.write_text("no library")
    assert compiler.library() == named
    with pytest.raises(compiler.CompileError, match=f"{named} is no libtpu: .*(file too short|invalid ELF header)"):
        compiler.cores("v5e:2x4")


# ---- what the process is told, in the encoding of protocol buffers


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**31, 2**63 - 1])
def test_numbers_and_bytes_are_encoded(number):
    packed = compiler_process.field(1, compiler_process.varint(number) * 2)
    assert list(xla_data_pb2.ReplicaGroup.FromString(packed).replica_ids) == [number] * 2
    assert xla_data_pb2.SourceTarget.FromString(compiler_process.field(2, number)).target == number


@pytest.mark.parametrize("optimise", [True, False])
def test_options_are_those_of_xla(optimise):
    pytest.importorskip("jax", reason="needs jaxlib, which can read the options")
    from jax._src.lib import xla_client

    parsed = xla_client.CompileOptions.ParseFromString(compiler_process.compile_options(200, optimise))
    assert (compiler_process.field(24, 9) in parsed.SerializeAsString()) is not optimise
    options = parsed.executable_build_options
    assert (options.num_replicas, options.num_partitions) == (200, 1)
    assignment = xla_data_pb2.DeviceAssignmentProto.FromString(options.device_assignment.serialize())
    assert (assignment.replica_count, assignment.computation_count) == (200, 1)
    assert [list(devices.replica_device_ids) for devices in assignment.computation_devices] == [list(range(200))]


# ---- a process that goes wrong


@pytest.fixture
def process(monkeypatch, tmp_path):
    """``process(code)`` puts another program in the place of the compiler's process."""

    def replaced(code):
        (tmp_path / "process.py").write_text(code)
        monkeypatch.setattr(compiler_process, "__file__", str(tmp_path / "process.py"))
        monkeypatch.setenv("TPU_LIBRARY_PATH", str(tmp_path / "process.py"))

    return replaced


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", r"ended its process \(-9\): it said nothing"),
        ("import sys; sys.exit('\\nF0101 Check failed\\nmore')", r"ended its process \(1\): F0101 Check failed$"),
    ],
)
def test_a_compiler_that_dies(process, code, message):
    process(code)
    with pytest.raises(compiler.CompileError, match=message):
        compiler.compile_program(b"", "v5e:2x4")


def test_a_compiler_that_hangs(process):
    process("import time; time.sleep(60)")
    with pytest.raises(compiler.CompileError, match="has not finished within 0.5 s"):
        compiler.compile_program(b"", "v5e:2x4", timeout=0.5)


# ---- libtpu itself


def lowered(fn, *shape):
    strategy = tpu_description.described_strategy(CORES)

    return tpu_description.hlo(tpu_description.replica_function(strategy, fn, (tf.TensorSpec(shape, tf.float32),)))


@functools.cache
def twenty_products(size):
    """Of [size, size] matrices, all needed again after the last one."""

    def fn(x):
        factors = [tf.linalg.matmul(x * float(i + 1), x) for i in range(20)]
        product = factors[0]
        for factor in reversed(factors):
            product = tf.linalg.matmul(factor, product)
        return product

    return lowered(fn, size, size)


@needs_libtpu
@pytest.mark.parametrize(("topology", "cores"), [*((name, CORES) for name in TOPOLOGIES), ("v5e:2x2", 4), ("v5e:16x16", 256)])
def test_cores_of_a_topology(topology, cores):
    assert compiler.cores(topology) == cores


@needs_libtpu
@pytest.mark.parametrize("topology", ["nonsense", "v99:2x2", "v5e:3x3"])
def test_a_topology_that_does_not_exist(topology):
    with pytest.raises(compiler.CompileError, match=rf"--topology {topology}: .* named like v2:2x2, .*v5e:2x4") as error:
        compiler.cores(topology)
    assert "\n" not in str(error.value)


@needs_libtpu
def test_what_a_program_needs():
    found = compiler.compile_program(lowered(lambda x: x + 1.0, 1024, 1024), "v5e:2x4", optimise=False)
    assert (found.argument, found.output) == (2**22, 2**22)
    assert min(found.code, len(found.optimised)) > 0


@needs_libtpu
def test_what_the_compiler_refuses():

    with pytest.raises(compiler.CompileError, match="^Element type C128 is not supported on TPU.$"):
        compiler.compile_program(lowered(lambda x: tf.cast(x, tf.complex128), 8), "v5e:2x4")


@needs_libtpu
def test_what_ends_the_process_of_the_compiler():

    hlo = lowered(lambda x: tf.math.real(tf.cast(x, tf.complex128)), 8)
    with pytest.raises(compiler.CompileError, match=r"^the compiler ended its process \(-6\): .*Check failed"):
        compiler.compile_program(hlo, "v5e:2x4")


@needs_libtpu
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_what_does_not_fit_and_what_a_core_has(topology):
    hlo = twenty_products(65_536 if topology.startswith("v6e") else 32_768)
    with pytest.raises(compiler.DoesNotFitError) as error:
        compiler.compile_program(hlo, topology, optimise=False)
    capacity = re.search(r"[\d.]+G of ([\d.]+)G per core are used; its largest allocation is f32\[", str(error.value))
    assert compiler.core_memory(topology) == pytest.approx(float(capacity[1]) * 2**30, rel=0.005)
