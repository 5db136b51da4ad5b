"""Runs the program that is compiled for every core of a TPU on as many CPU devices, each with variables of its own.

XLA for CPU compiles the very HLO that libtpu is given, collectives and all, and jax's runtime executes it: numbers come out.
"""

import numpy as np
import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2

from tf_simigrad.compat import tpu_description


class Cores:
    """Cores with memory: variables start as TensorFlow made them, and keep what programs write.

    Args:
        strategy: A described TPUStrategy.
    """

    def __init__(self, strategy):
        import jax
        from jax._src import xla_bridge
        from jax._src.lib import xla_client

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)
        self._jax, self._client = jax, xla_client
        self._strategy, self._count = strategy, strategy.num_replicas_in_sync
        self._backend = xla_bridge.get_backend("cpu")
        self._devices = self._backend.local_devices()[: self._count]
        self._memory = {}

    def program(self, fn, *specs):
        """``call(*arguments)`` with one list of values per leaf of the specs, one value per core -> outputs per core."""
        function = tpu_description.replica_function(self._strategy, fn, specs)
        serialized = tpu_description.hlo(function)
        module = hlo_pb2.HloModuleProto()
        module.ParseFromString(serialized)
        aliases = {tuple(e.output_shape_index)[0]: e.parameter_number for e in module.input_output_alias.entries}
        executable = self._compiled(serialized)
        given = len(tf.nest.flatten(specs))

        def call(*arguments):
            values = [list(value) for value in arguments]
            assert len(values) == given
            values += [self._held(handle) for handle in function.captured_inputs]
            outputs = self._execute(executable, values)
            for index, parameter in aliases.items():
                self._memory[id(function.captured_inputs[parameter - given])] = outputs[index]
            return [output for index, output in enumerate(outputs) if index not in aliases]

        return call

    def value(self, variable):
        """What each core holds of a variable."""
        return [np.asarray(part) for part in self._held(variable.handle)]

    def _held(self, handle):
        if id(handle) not in self._memory:
            data_type = handle._handle_data.shape_and_type[0].dtype
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=data_type).numpy()
            self._memory[id(handle)] = [value] * self._count
        return self._memory[id(handle)]

    def _compiled(self, serialized):
        client = self._client
        module = client._xla.mlir.xla_computation_to_mlir_module(client.XlaComputation(serialized))
        options = client.CompileOptions()
        options.num_replicas = self._count
        options.device_assignment = client.DeviceAssignment.create(np.arange(self._count)[:, None])
        return self._backend.compile_and_load(module, client.DeviceList(tuple(self._devices)), options)

    def _execute(self, executable, values):
        jax = self._jax
        mesh = jax.sharding.Mesh(np.array(self._devices), ("cores",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("cores"))
        arguments = []
        for parts in values:
            parts = [np.asarray(part) for part in parts]
            shape = (self._count * parts[0].shape[0], *parts[0].shape[1:]) if parts[0].ndim else ()
            on_devices = [jax.device_put(part, device) for part, device in zip(parts, self._devices, strict=True)]
            how = sharding if parts[0].ndim else jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
            arguments.append(jax.make_array_from_single_device_arrays(shape, how, on_devices))
        results = executable.execute_sharded(arguments)
        return [[np.asarray(part) for part in parts] for parts in results.disassemble_into_single_device_arrays()]
