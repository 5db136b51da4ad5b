"""Compiles the programs of a training and puts together what they need, send and say."""

import time

from tools.progress import Progress
from tools.tpu import compiler, optimised
from tools.tpu.programs import LoweringError

# In this order: a micro-step tells the update which variables have a gradient.
PROGRAMS = ("micro_step", "update", "plain_step")


def measure(training, topology, cores, optimise=True, say=lambda line: None):
    """Compiles all three programs.

    Args:
        training: A `programs.Training`.
        topology: Such as "v5e:2x4".
        cores: How many it has.
        optimise: Whether the compiler takes its time; without, nothing is said about memory.
        say: Called with a line of progress.

    Returns:
        A dict for JSON: what became of each program, memory per core, bytes that each core sends per update.
    """
    programs = {}
    with Progress("compiled", len(PROGRAMS), "programs") as progress:
        for name in PROGRAMS:
            programs[name] = measure_program(training, name, topology, cores, optimise, say)
            progress.add()
    result = {"programs": programs, "gradient_bytes": training.gradient_bytes, "cores": cores}
    result["compiles"] = all("error" not in programs[name] for name in ("micro_step", "update"))
    if result["compiles"] and optimise:
        result["memory"] = memory(programs, topology)
    if "error" not in programs["update"]:
        result["sent"] = sent(programs, training.gradient_bytes, cores)
    return result


def measure_program(training, name, topology, cores, optimise, say):
    """What one program needs and says, or under "error" why there is none."""
    say(f"{name.replace('_', '-')}: tracing")
    started = time.perf_counter()
    try:
        lowered = getattr(training, name)()
        say(f"{name.replace('_', '-')}: compiling {len(lowered.hlo) / 1e6:.1f} MB of HLO")
        compiled = compiler.compile_program(lowered.hlo, topology, optimise)
    except (compiler.CompileError, LoweringError) as error:
        return {"error": str(error), "fits": not isinstance(error, compiler.DoesNotFitError)}
    found = optimised.collectives(compiled.optimised, cores)
    broken = [c for c in found if c.operation != "collective-permute" and not optimised.is_partition(c.groups, cores)]
    if broken:
        return {"error": f"{broken[0].operation}: groups {broken[0].groups} leave out cores of {cores}", "fits": True}
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "arguments": compiled.argument,
        "elsewhere": lowered.elsewhere,
        "temporaries": compiled.temp,
        "outputs": compiled.output,
        "code": compiled.code,
        "collectives": [collective._asdict() for collective in found],
    }


def memory(programs, topology):
    """Bytes per core while either program runs, beside the code of both; the same of plain training, and what a core has."""
    found = {**needed([programs["micro_step"], programs["update"]]), "of_core": compiler.core_memory(topology)}
    found["fits"] = found["of_core"] is None or found["data"] + found["code"] <= found["of_core"]
    if "error" not in programs["plain_step"]:
        # What the plain step does not touch, gradient sums and VRGD's state, does not exist in plain training.
        found["plain"] = needed([{**programs["plain_step"], "elsewhere": 0}])
    return found


def needed(programs):
    """Of programs that run one after the other: data (variables, a micro-batch, temporaries) at its highest, and all code."""
    running = [p["arguments"] + p["elsewhere"] + p["temporaries"] + p["outputs"] for p in programs]
    return {"data": max(running), "code": sum(p["code"] for p in programs)}


def fits_beside(result, size_of_result, make_training, topology, say):
    """`fits(size)`: whether the micro-step of a size compiles and fits, beside the update that is compiled already."""

    def fits(size):
        if size == size_of_result:
            return result.get("memory", {}).get("fits", False)
        program = measure_program(make_training(size), "micro_step", topology, result["cores"], True, say)
        if "error" in program:
            if program["fits"]:
                raise compiler.CompileError(f"{size} examples per core: {program['error']}")
            say(f"{size} examples per core: {program['error']}")
            return False
        found = memory({**result["programs"], "micro_step": program}, topology)
        say(f"{size} examples per core: {(found['data'] + found['code']) / 1e6:,.0f} MB")
        return found["fits"]

    return fits


def sent(programs, gradient_bytes, cores):
    """Bytes that each core sends: per update and micro-step, in a ring all-reduce, and in the plain step as compiled."""
    found = {name: sum(c["bytes"] for c in programs[name].get("collectives", ())) for name in PROGRAMS}
    found["all_reduce"] = optimised.SENT["all-reduce"](gradient_bytes, cores)
    found["ratio"] = found["update"] / found["all_reduce"] if found["all_reduce"] else None
    return found
