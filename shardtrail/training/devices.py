"""The strategy a run trains under, with TensorFlow set so that the same run gives the same bits."""

from __future__ import annotations

import contextlib

import tensorflow as tf

from shardtrail.config import TrainParams
from shardtrail.errors import ConfigError
from shardtrail.execution import cores


def open_strategy(params: TrainParams) -> tf.distribute.Strategy:
    """Set TensorFlow up and open the devices that ``train.strategy`` asks for.

    ``mirrored`` takes the first ``replicas`` GPUs; on a machine without any it divides the CPU into as many
    logical devices.

    Raises:
        ConfigError: fewer GPUs than replicas, or TensorFlow has already started with fewer devices.
    """
    _be_exact()
    replicas = params.replicas if params.strategy == "mirrored" else 1
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    if kind == "CPU" and replicas > 1:
        _divide_cpu(replicas)
    devices = tf.config.list_logical_devices(kind)
    if len(devices) < replicas:
        raise ConfigError(f"train.replicas: {replicas} asked for, {len(devices)} {kind} devices are there")
    if params.strategy == "one_device":
        return tf.distribute.OneDeviceStrategy(devices[0].name)
    return tf.distribute.MirroredStrategy([device.name for device in devices[:replicas]])


def _be_exact() -> None:
    tf.config.experimental.enable_op_determinism()
    # It merges additions of gradients, in another order for another number of micro-batches a device.
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    # The cores of this process, not of the host. Once TensorFlow runs, its threads stay as they are.
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(cores())


def _divide_cpu(replicas: int) -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    except RuntimeError:
        if len(tf.config.list_logical_devices("CPU")) < replicas:
            raise ConfigError(
                f"train.replicas: TensorFlow runs in this process with fewer than {replicas} devices; "
                "train in a new process"
            ) from None
