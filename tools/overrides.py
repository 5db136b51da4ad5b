"""`--set name=value`: every field of an experiment, of its task and of its policy, checked before anything starts."""

import ast
import dataclasses
import difflib
import typing

import tf_simigrad as sg
from configs.experiment import POLICIES
from models.tasks import TASKS

# The fields of an experiment that are objects, and what they may be.
NESTED = {
    "policy": {name: getattr(sg, name) for name in POLICIES},
    "task": {task.__name__: task for task in TASKS},
}
EXAMPLES = {"policy": "FixedBatch(batch_size=128)", "task": "Cifar10(network='resnet20')"}
TRUTH = {"true": True, "1": True, "false": False, "0": False}


def suggest(name, known):
    """The end of an error message about an unknown name."""
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(sorted(known))}"


def _literal(text):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def convert(name, text, hint):
    """Reads `text` as a value of the type `hint`: int, float, bool, str, or one of them or None.

    Raises:
        ValueError: If it is no such value.
    """
    wanted = [option for option in (typing.get_args(hint) or (hint,)) if option is not type(None)]
    optional = type(None) in typing.get_args(hint)
    value = _literal(text)
    if optional and (value is None or text.lower() == "none"):
        return None
    if bool in wanted:
        if text.lower() in TRUTH:
            return TRUTH[text.lower()]
    elif type(value) in wanted:
        return value
    elif float in wanted and type(value) is int:
        return float(value)
    elif str in wanted:
        return text
    names = " or ".join([option.__name__ for option in wanted] + ["None"] * optional)
    raise ValueError(f"{name}={text}: expected {names}")


def parse_call(field, text):
    """Builds a policy or a task from a call as one would write it in Python; nothing is evaluated but literals.

    Args:
        field: "policy" or "task".
        text: For example "FixedBatch(batch_size=128)".

    Raises:
        ValueError: If it is not a call of such a class with literal keyword arguments that it accepts.
    """
    classes = NESTED[field]
    expected = f"{field}={text}: expected {', '.join(classes)} with literal keyword arguments, e.g. {EXAMPLES[field]}"
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        raise ValueError(expected) from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(expected)
    if call.func.id not in classes:
        raise ValueError(f"{field}={text}: no {field} {call.func.id}; {suggest(call.func.id, classes)}")
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        raise ValueError(expected)
    hints = _hints(classes[call.func.id])
    arguments = {}
    for keyword in call.keywords:
        if keyword.arg not in hints:
            raise ValueError(f"{field}={text}: {call.func.id} has no {keyword.arg}; {suggest(keyword.arg, hints)}")
        name = f"{field}.{keyword.arg}"
        arguments[keyword.arg] = convert(name, ast.get_source_segment(text, keyword.value), hints[keyword.arg])
    try:
        return classes[call.func.id](**arguments)
    except TypeError as error:
        raise ValueError(f"{field}={text}: {error}") from error


def _hints(dataclass):
    hints = typing.get_type_hints(dataclass)
    return {field.name: hints[field.name] for field in dataclasses.fields(dataclass) if field.init}


def apply_overrides(experiment, assignments):
    """Replaces fields of an experiment.

    Args:
        experiment: An `Experiment`.
        assignments: "name=value" strings: "epochs=3", "policy.target_similarity=0.3", "policy=FixedBatch(batch_size=128)",
            "task.length=512".

    Returns:
        A new `Experiment`.

    Raises:
        ValueError: If a name is unknown or a value does not fit.
    """
    # All fields of an object are replaced at once: its bounds, for example, have to fit only when all are set.
    changes, nested_changes = {}, {field: {} for field in NESTED}
    nested = {field: getattr(experiment, field) for field in NESTED}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        field, dot, inner = name.partition(".")
        if not equals:
            raise ValueError(f"--set {assignment}: expected name=value")
        if name in NESTED:
            nested[name] = parse_call(name, text)
        elif dot and field in NESTED:
            nested_changes[field][inner] = text
        else:
            changes[name] = text
    nested = {field: _replace(value, nested_changes[field], f"{field}.") for field, value in nested.items()}
    return _replace(experiment, changes, "", **nested)


def _replace(instance, texts, prefix, **values):
    hints = _hints(type(instance))
    for name, text in texts.items():
        if name not in hints:
            raise ValueError(f"no field {prefix}{name}; {suggest(name, hints)}")
        values[name] = convert(prefix + name, text, hints[name])
    return dataclasses.replace(instance, **values) if values else instance
