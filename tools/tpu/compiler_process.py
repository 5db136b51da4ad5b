"""The process in which libtpu compiles one program: python compiler_process.py FOLDER, which holds what `compiler` put there.

A process of its own, because the compiler ends the one it is in where it is asked for something it never expected. It imports
the standard library alone, and speaks the C interface of PJRT (xla/pjrt/c/pjrt_c_api.h), whose structures and table of
functions only ever grow at the end.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

POINTER, SIZE = ctypes.c_void_p, ctypes.c_size_t
# Places in the table of functions, which follows the header and the version of the structure.
TABLE_OFFSET = 40
PLACES = {
    "Error_Message": 1,
    "Plugin_Initialize": 3,
    "Executable_OptimizedProgram": 48,
    "TopologyDescription_Create": 82,
    "TopologyDescription_GetDeviceDescriptions": 86,
    "Compile": 89,
    "Executable_GetCompiledMemoryStats": 96,
}
MEMORY = ("generated_code", "argument", "output", "alias", "temp")
HOST_MEMORY = tuple(f"host_{name}" for name in MEMORY)
UNOPTIMISED = 9  # EFFORT_O0 of xla.ExecutionOptions.EffortLevel


class CompilerError(Exception):
    """What libtpu says is wrong."""


def structure(*fields, **values):
    """An instance of a PJRT structure: its size and extensions, then the fields."""
    kind = type("Structure", (ctypes.Structure,), {"_fields_": [("struct_size", SIZE), ("extensions", POINTER), *fields]})
    return kind(struct_size=ctypes.sizeof(kind), **values)


class Libtpu:
    def __init__(self, library):
        try:
            loaded = ctypes.CDLL(str(library))
            loaded.GetPjrtApi.restype = POINTER
        except (OSError, AttributeError) as error:
            raise CompilerError(f"{library} is no libtpu: {error}") from error
        self.api = loaded.GetPjrtApi()
        self.call("Plugin_Initialize", structure())

    def function(self, name):
        offset = TABLE_OFFSET + ctypes.sizeof(POINTER) * PLACES[name]
        if offset >= SIZE.from_address(self.api).value:
            raise CompilerError(f"this libtpu has no PJRT_{name}: take the version that tools/requirements-test.in names")
        return ctypes.CFUNCTYPE(POINTER, POINTER)(POINTER.from_address(self.api + offset).value)

    def call(self, name, arguments):
        error = self.function(name)(ctypes.addressof(arguments))
        if error:
            said = structure(("error", POINTER), ("message", POINTER), ("size", SIZE), error=error)
            self.function("Error_Message")(ctypes.addressof(said))
            raise CompilerError(ctypes.string_at(said.message, said.size).decode(errors="replace"))
        return arguments

    def topology(self, name):
        fields = (("name", ctypes.c_char_p), ("name_size", SIZE), ("options", POINTER), ("options_count", SIZE),
                  ("topology", POINTER))  # fmt: skip
        encoded = name.encode()
        return self.call("TopologyDescription_Create", structure(*fields, name=encoded, name_size=len(encoded))).topology

    def cores(self, topology):
        fields = ("topology", POINTER), ("descriptions", POINTER), ("count", SIZE)
        return self.call("TopologyDescription_GetDeviceDescriptions", structure(*fields, topology=topology)).count

    def compile(self, topology, hlo, options):
        code = ctypes.create_string_buffer(hlo, len(hlo))
        program = program_structure(code=ctypes.addressof(code), code_size=len(hlo), format=b"hlo", format_size=3)
        fields = (("topology", POINTER), ("program", POINTER), ("options", ctypes.c_char_p), ("options_size", SIZE),
                  ("client", POINTER), ("executable", POINTER))  # fmt: skip
        values = {"topology": topology, "program": ctypes.addressof(program), "options": options, "options_size": len(options)}
        return self.call("Compile", structure(*fields, **values)).executable

    def memory(self, executable):
        fields = [("executable", POINTER), *((name, ctypes.c_int64) for name in (*MEMORY, *HOST_MEMORY, "peak"))]
        # Newer libraries fill in what these versions do not know of: room for it.
        found = self.call("Executable_GetCompiledMemoryStats", structure(*fields, ("more", SIZE * 8), executable=executable))
        return {name: getattr(found, name) for name in MEMORY}

    def optimised(self, executable):
        program = program_structure()
        fields = ("executable", POINTER), ("program", POINTER)
        arguments = structure(*fields, executable=executable, program=ctypes.addressof(program))
        # Asked twice: for the size, then for the text.
        self.call("Executable_OptimizedProgram", arguments)
        code = ctypes.create_string_buffer(program.code_size or 1)
        program.code = ctypes.addressof(code)
        self.call("Executable_OptimizedProgram", arguments)
        return code.raw[: program.code_size]


def program_structure(**values):
    fields = ("code", POINTER), ("code_size", SIZE), ("format", ctypes.c_char_p), ("format_size", SIZE)
    return structure(*fields, **values)


def varint(number):
    encoded = b""
    while number > 127:
        encoded += bytes([number & 127 | 128])
        number >>= 7
    return encoded + bytes([number])


def field(number, value):
    """A field of a protocol buffer: a number, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def compile_options(replicas, optimise):
    """xla.CompileOptionsProto: replica i on core i; TensorFlow's own description of it is not in its package."""
    assignment = field(1, replicas) + field(2, 1) + field(3, field(1, b"".join(map(varint, range(replicas)))))
    any_device = (1 << 64) - 1  # -1
    build = field(1, any_device) + field(4, replicas) + field(5, 1) + field(9, assignment)
    return field(3, build + (b"" if optimise else field(24, UNOPTIMISED)))


def compiled(folder, request):
    library = Libtpu(request["library"])
    topology = library.topology(request["topology"])
    cores = library.cores(topology)
    if request["program"] is None:
        return {"cores": cores}
    hlo = (folder / request["program"]).read_bytes()
    executable = library.compile(topology, hlo, compile_options(cores, request["optimise"]))
    (folder / "optimised").write_bytes(library.optimised(executable))
    return {"cores": cores, "memory": library.memory(executable)}


def main(folder):
    request = json.loads((folder / "request.json").read_text())
    try:
        result = compiled(folder, request)
    except CompilerError as error:
        result = {"error": str(error)}
    (folder / "result.json").write_text(json.dumps(result))
    # Nothing of the library is taken down: that can hang, and the process ends anyway.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
