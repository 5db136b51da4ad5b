"""What is made of the figures of compiled programs, in figures made up."""

import pytest

from tools.tpu import compiler, measurement

pytestmark = pytest.mark.one_keras

CORES = 8


def figures(arguments=0, elsewhere=0, temporaries=0, outputs=0, code=0, sent=()):
    sizes = {"arguments": arguments, "elsewhere": elsewhere, "temporaries": temporaries, "outputs": outputs, "code": code}
    return {**sizes, "collectives": [{"bytes": size} for size in sent]}


@pytest.fixture
def programs():
    return {
        "micro_step": figures(arguments=100, elsewhere=20, temporaries=50, outputs=1, code=7, sent=[3]),
        "update": figures(arguments=110, elsewhere=10, temporaries=40, outputs=2, code=5, sent=[30, 5]),
        "plain_step": figures(arguments=90, elsewhere=30, temporaries=60, outputs=1, code=6, sent=[32]),
    }


def test_memory_is_that_of_the_larger_program_and_the_code_of_both(programs):
    assert measurement.memory(programs, "v5e:2x4") == {
        "data": 171, "code": 12, "of_core": compiler.CORE_MEMORY["v5e"], "fits": True, "plain": {"data": 151, "code": 6}
    }  # fmt: skip


def test_memory_without_a_plain_step_on_an_unknown_tpu(programs):
    programs["plain_step"] = {"error": "left out", "fits": True}
    assert measurement.memory(programs, "v9:2x2") == {"data": 171, "code": 12, "of_core": None, "fits": True}


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_data_and_code_fit_together(programs, more, fits):
    programs["micro_step"]["temporaries"] += compiler.CORE_MEMORY["v5e"] - 171 - 12 + more
    assert measurement.memory(programs, "v5e:2x4")["fits"] is fits


def test_what_is_sent_beside_a_ring_all_reduce(programs):
    assert measurement.sent(programs, gradient_bytes=16, cores=CORES) == {
        "micro_step": 3, "update": 35, "plain_step": 32, "all_reduce": 28, "ratio": 35 / 28
    }  # fmt: skip
    assert measurement.sent(programs, gradient_bytes=16, cores=1)["ratio"] is None


@pytest.fixture
def fits(monkeypatch, programs):
    """``fits(program)``: of a size whose micro-step has these figures, beside the update above."""
    said = []
    monkeypatch.setattr(measurement, "measure_program", lambda training, *arguments: training)
    result = {"programs": programs, "cores": CORES}
    return lambda program: measurement.fits_beside(result, 8, lambda size: program, "v5e:2x4", said.append)(16)


@pytest.mark.parametrize(("memory", "fits"), [({"fits": True}, True), ({"fits": False}, False), (None, False)])
def test_the_size_that_was_measured_is_not_compiled_again(memory, fits):
    result = {} if memory is None else {"memory": memory}
    assert measurement.fits_beside(result, 8, None, "v5e:2x4", None)(8) is fits


def test_another_size_is_judged_beside_the_same_update(fits):
    assert fits(figures(temporaries=1))
    assert not fits(figures(temporaries=compiler.CORE_MEMORY["v5e"]))
    assert not fits({"error": "it does not fit", "fits": False})
    with pytest.raises(compiler.CompileError, match="16 examples per core: it is broken"):
        fits({"error": "it is broken", "fits": True})
