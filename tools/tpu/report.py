"""The result of tools.tpu_check as a person reads it."""

from tools.tpu.largest import LARGEST_TRIED

NAMES = {"micro_step": "micro-step", "update": "update", "plain_step": "plain step"}


def megabytes(size):
    return f"{size / 1e6:,.1f}"


def text(result):
    lines = [
        f"{result['config']} on {result['topology']}: {result['cores']} cores, {result['micro_batch_size']} examples per core "
        f"and micro-step, TensorFlow {result['versions']['tensorflow']}, libtpu {result['libtpu']}",
        "",
        *table(result["programs"], result["optimised"]),
        "",
        *memory_lines(result.get("memory")),
        *collective_lines(result["programs"]),
        *sent_lines(result.get("sent")),
    ]
    if "largest_micro_batch_size" in result:
        size = result["largest_micro_batch_size"]
        more = " or more; larger ones were not tried" if size == LARGEST_TRIED else ""
        lines.append(f"largest micro-batch that fits: {size} examples per core{more}")
    return "\n".join(lines)


def table(programs, optimised):
    columns = ("arguments", "temporaries", "code") if optimised else ()
    yield "".join(f"{name:>14}" for name in ("program", "compiles", *columns)) + ("   MB per core" if columns else "")
    for name, program in programs.items():
        if "error" in program:
            yield f"{NAMES[name]:>14}            no: {program['error']}"
        else:
            figures = "".join(f"{megabytes(program[column]):>14}" for column in columns)
            yield f"{NAMES[name]:>14}{'in ' + format(program['seconds'], '.0f') + ' s':>14}{figures}"


def memory_lines(memory):
    if memory is None:
        return
    of = "" if memory["of_core"] is None else f" of {megabytes(memory['of_core'])} MB"
    yield f"memory per core:  {spent(memory)}" + of + ("" if memory["fits"] else ": DOES NOT FIT")
    if "plain" in memory:
        more = (megabytes(memory[part] - memory["plain"][part]) for part in ("data", "code"))
        yield f" plain training:  {spent(memory['plain'])}; the difference is {' + '.join(more)} MB"


def spent(memory):
    total = megabytes(memory["data"] + memory["code"])
    return f"data {megabytes(memory['data'])} + code {megabytes(memory['code'])} = {total} MB"


def collective_lines(programs):
    for name, program in programs.items():
        for operation, count, size, groups in summed(program.get("collectives", ())):
            yield f"{NAMES[name]}: {count} {operation} in groups {groups}, {megabytes(size)} MB sent per core"


def summed(collectives):
    """Those of one kind and the same groups together: kind, how many, bytes, groups."""
    together = {}
    for one in collectives:
        groups = " ".join(map(name_of, one["groups"][:4]))
        key = (one["operation"], groups + (" ..." if len(one["groups"]) > 4 else ""))
        count, size = together.get(key, (0, 0.0))
        together[key] = (count + 1, size + one["bytes"])
    return [(operation, count, size, groups) for (operation, groups), (count, size) in together.items()]


def name_of(group):
    """{0,1,4,5}, or {0..7} where they are consecutive."""
    if len(group) > 2 and group == list(range(group[0], group[-1] + 1)):
        return f"{{{group[0]}..{group[-1]}}}"
    return "{" + ",".join(map(str, group)) + "}"


def sent_lines(sent):
    if sent is None:
        return
    plain = f"; plain step as compiled {megabytes(sent['plain_step'])}" if sent["plain_step"] else ""
    ratio = "" if sent["ratio"] is None else f": {sent['ratio']:.4f} of it"
    yield (
        f"sent per update and core: {megabytes(sent['update'])} MB; a ring all-reduce of the gradient "
        f"{megabytes(sent['all_reduce'])}{ratio}{plain}"
    )
