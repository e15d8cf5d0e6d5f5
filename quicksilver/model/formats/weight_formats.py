"""The values of the `weights` setting, and which device supports which.

`float32` and `bfloat16` are tensor dtypes and run anywhere. The other formats belong to one backend, which rounds the
weights when it loads them: `int8` to the CPU backend, `fp8` and `int4` to the CUDA backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quicksilver.errors import InvalidRequest

if TYPE_CHECKING:
    from quicksilver.model.config import ModelConfig

AUTO = "auto"
# The devices that support each format.
DEVICES = {
    "float32": ("cpu", "cuda"),
    "bfloat16": ("cpu", "cuda"),
    "int8": ("cpu",),
    "fp8": ("cuda",),
    "int4": ("cuda",),
}
SETTINGS = (AUTO, *DEVICES)


def formats_of(device: str) -> tuple[str, ...]:
    """The formats that `device` (cpu or cuda) supports."""
    return tuple(name for name, devices in DEVICES.items() if device in devices)


def formats_for(config: ModelConfig, device: str) -> tuple[str, ...]:
    """The formats that a backend of the device computes this network in."""
    has_kernels = {"int8": config.is_plain, "fp8": config.fits_cuda_kernels, "int4": config.fits_int4_kernels}
    return tuple(name for name in formats_of(device) if has_kernels.get(name, True))


def kv_number_bytes(weights: str) -> int:
    """Bytes of a number in the KV cache beside weights of this format."""
    return 4 if weights == "float32" else 2


def check_format(name: str, device: str) -> None:
    """Raises InvalidRequest unless `device` supports the format; the message names the formats that it supports."""
    if name not in DEVICES:
        raise InvalidRequest(f"weights {name!r} is not one of {', '.join(SETTINGS)}", param="weights")
    if device not in DEVICES[name]:
        raise unsupported_format(name, f"{device} supports {', '.join((AUTO, *formats_of(device)))}")


def unsupported_format(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"weights {name!r} cannot be used here: {reason}", param="weights")
