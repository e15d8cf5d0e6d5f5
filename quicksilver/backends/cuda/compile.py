"""CUDA source -> a kernel to launch, by the compiler and the driver that come with torch; no toolkit is needed.

`find_compiler` says whether there is one. Kernels are kept for the life of the process: a compilation takes a second.
"""

from __future__ import annotations

import ctypes
import site
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch

_MAX_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"""
_MOST_SHARED = 97
"""CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"""
_OVERLAPS = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"""


class CudaError(RuntimeError):
    """A compilation, or a call of the driver, that failed."""


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_byte * 60))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    )


class Kernel:
    """A compiled function with one argument, a structure that is copied at the launch."""

    def __init__(self, function: ctypes.c_void_p, num_threads: int, num_shared: int) -> None:
        self._function, self._num_threads, self._num_shared = function, num_threads, num_shared
        _check(_driver().cuFuncSetAttribute(function, _MAX_SHARED, num_shared))

    def launch(self, num_programs: int, argument: ctypes.Structure, overlaps: bool) -> None:
        """On torch's stream. With `overlaps` it may begin before the launch before it ends, and waits by itself."""
        attribute = _Attribute(_OVERLAPS, 0, int(overlaps))
        config = _Config(
            (num_programs, 1, 1), (self._num_threads, 1, 1), self._num_shared,
            torch.cuda.current_stream().cuda_stream, ctypes.pointer(attribute), 1,
        )  # fmt: skip
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        _check(_driver().cuLaunchKernelEx(ctypes.byref(config), self._function, arguments, None))


@cache
def find_compiler() -> ctypes.CDLL | None:
    """The runtime compiler of torch's own packages, or of the system."""
    major = (torch.version.cuda or "").split(".")[0]
    name = f"libnvrtc.so.{major}"
    roots = [Path(root) / "nvidia" for root in (*site.getsitepackages(), site.getusersitepackages())]
    places = [str(path) for root in roots if root.is_dir() for path in sorted(root.glob(f"*/lib/{name}"))]
    for place in (*places, name):
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    return None


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def most_shared(index: int) -> int:
    """Bytes of shared memory that a program can have on GPU `index`."""
    device, found = ctypes.c_int(), ctypes.c_int()
    _check(_driver().cuDeviceGet(ctypes.byref(device), index))
    _check(_driver().cuDeviceGetAttribute(ctypes.byref(found), _MOST_SHARED, device))
    return found.value


def _check(status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise CudaError(f"CUDA: {(text.value or b'unknown').decode()} ({status})")


def source(name: str) -> str:
    return (files("quicksilver.backends.cuda.src") / name).read_text()


def compile_kernel(
    name: str,
    macros: dict[str, int],
    num_threads: int,
    num_shared: int,
    capability: tuple[int, int],
) -> Kernel:
    """The function `name` of `name`.cu with these macros, for chips of this capability."""
    binary = compile_binary(name, macros, capability)
    torch.cuda.current_stream().synchronize()  # there is a context from here on
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(_driver().cuModuleLoadData(ctypes.byref(module), binary))
    _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
    return Kernel(function, num_threads, num_shared)


def compile_binary(name: str, macros: dict[str, int], capability: tuple[int, int]) -> bytes:
    compiler = find_compiler()
    if compiler is None:
        raise CudaError("libnvrtc is missing: install torch with its CUDA packages")
    program, header = ctypes.c_void_p(), "device.cuh"
    texts, names = (ctypes.c_char_p * 1)(source(header).encode()), (ctypes.c_char_p * 1)(header.encode())
    file = f"{name}.cu"
    compiler.nvrtcCreateProgram(ctypes.byref(program), source(file).encode(), file.encode(), 1, texts, names)
    # With all that this very chip can do: it runs here and nowhere else.
    options = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}a", "--std=c++17"]
    options += [f"-D{key}={value}" for key, value in macros.items()]
    coded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    try:
        if compiler.nvrtcCompileProgram(program, len(options), coded):
            raise CudaError(f"{file}: {_text(compiler, program, 'ProgramLog').decode(errors='replace')}")
        return _text(compiler, program, "CUBIN")
    finally:
        compiler.nvrtcDestroyProgram(ctypes.byref(program))


def _text(compiler: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(compiler, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(compiler, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw
