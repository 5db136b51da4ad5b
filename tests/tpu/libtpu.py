"""Shared by the tests that compile with libtpu: where they run, and for what."""

import pytest

from tools.tpu import compiler

# All of eight cores, so that they share what is lowered.
TOPOLOGIES = ("v2:2x2", "v3:2x2", "v4:2x2x1", "v5e:2x4", "v6e:2x4")
CORES = 8


def reason_to_skip():
    try:
        compiler.library()
    except ImportError as error:
        return str(error)
    return ""


needs_libtpu = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip())
