"""Names of the networks of `models.cifar_resnet`; reads them without TensorFlow, so that a config can be checked at once."""

import re


def depth_of(network: str) -> int:
    """Weighted layers of a network.

    Args:
        network: "resnet18", or "resnet" and 6n + 2: "resnet8", "resnet14", "resnet20", ..., "resnet110".

    Raises:
        ValueError: If there is no such network.
    """
    match = re.fullmatch("resnet([1-9][0-9]*)", network) if isinstance(network, str) else None
    depth = int(match[1]) if match else 0
    if depth != 18 and (depth < 8 or (depth - 2) % 6):
        raise ValueError(
            f"network={network!r} is not known: a network for CIFAR is 'resnet18', or 'resnet' and its 6n + 2 layers: "
            "'resnet8', 'resnet14', 'resnet20', 'resnet32', 'resnet44', 'resnet56', ..., 'resnet110'"
        )
    return depth
