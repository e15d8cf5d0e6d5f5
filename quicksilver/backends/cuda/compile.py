"""Compiles CUDA source at run time with the NVRTC library that torch ships; no CUDA toolkit is needed.

`find_compiler` returns None without NVRTC. A compilation takes about a second. Binaries are cached on disk, in the
folder `cuda` of `$QUICKSILVER_HOME`, by their source, options and compiler; callers cache kernels per process.
"""

from __future__ import annotations

import ctypes
import logging
import site
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch

from quicksilver.backends.cuda.binary_cache import cached_binary, key_of
from quicksilver.hub.files import default_home

log = logging.getLogger("quicksilver.start")

# The header that every source file may include.
HEADER = "device.cuh"
# Constants of the CUDA driver API.
_FUNC_MAX_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_DEVICE_MAX_SHARED = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_LAUNCH_PDL = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class CudaError(RuntimeError):
    """A compilation or a driver call failed."""


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
    """A compiled function with one argument: a structure that is copied at the launch."""

    def __init__(self, function: ctypes.c_void_p, num_threads: int, num_shared: int) -> None:
        self._function, self._num_threads, self._num_shared = function, num_threads, num_shared
        _check(_driver().cuFuncSetAttribute(function, _FUNC_MAX_SHARED, num_shared))

    def launch(self, num_ctas: int, argument: ctypes.Structure, uses_pdl: bool) -> None:
        """Launch on torch's current stream. With `uses_pdl` it may start before the previous kernel ends; the kernel
        itself then waits for it."""
        attribute = _Attribute(_LAUNCH_PDL, 0, int(uses_pdl))
        config = _Config(
            (num_ctas, 1, 1), (self._num_threads, 1, 1), self._num_shared,
            torch.cuda.current_stream().cuda_stream, ctypes.pointer(attribute), 1,
        )  # fmt: skip
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        _check(_driver().cuLaunchKernelEx(ctypes.byref(config), self._function, arguments, None))


@cache
def find_compiler() -> ctypes.CDLL | None:
    """NVRTC from torch's packages, or from the system; None if it is missing."""
    major = (torch.version.cuda or "").split(".")[0]
    name = f"libnvrtc.so.{major}"
    roots = [Path(root) / "nvidia" for root in (*site.getsitepackages(), site.getusersitepackages())]
    paths = [str(path) for root in roots if root.is_dir() for path in sorted(root.glob(f"*/lib/{name}"))]
    for path in (*paths, name):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def max_shared_bytes(index: int) -> int:
    """Shared memory per CTA at most, in bytes, on GPU `index`."""
    device, found = ctypes.c_int(), ctypes.c_int()
    _check(_driver().cuDeviceGet(ctypes.byref(device), index))
    _check(_driver().cuDeviceGetAttribute(ctypes.byref(found), _DEVICE_MAX_SHARED, device))
    return found.value


def _check(status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise CudaError(f"CUDA: {(text.value or b'unknown').decode()} ({status})")


def source(name: str) -> str:
    return (files("quicksilver.backends.cuda.src") / name).read_text()


def load_kernel(name: str, binary: bytes, num_threads: int, num_shared: int) -> Kernel:
    """The function `name` of a compiled file."""
    torch.cuda.current_stream().synchronize()  # creates the CUDA context
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(_driver().cuModuleLoadData(ctypes.byref(module), binary))
    _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
    return Kernel(function, num_threads, num_shared)


def compile_binary(name: str, macros: dict[str, int], capability: tuple[int, int]) -> bytes:
    """The binary of `name`.cu, from the cache in `$QUICKSILVER_HOME` if this version was compiled before."""
    compiler = find_compiler()
    if compiler is None:
        raise CudaError("libnvrtc is missing: install torch with its CUDA packages")
    # Architecture-specific features (the `a` suffix) are allowed, because the binary runs on this GPU only.
    options = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}a", "--std=c++17"]
    options += [f"-D{key}={value}" for key, value in macros.items()]
    code, header = source(f"{name}.cu"), source(HEADER)
    key = key_of([name, code, HEADER, header, _compiler_version(compiler), *options])
    return cached_binary(default_home() / "cuda", key, lambda: _compile(compiler, f"{name}.cu", code, header, options))


def _compile(compiler: ctypes.CDLL, file: str, code: str, header: str, options: list[str]) -> bytes:
    log.info("compiling %s", file)
    program = ctypes.c_void_p()
    texts, names = (ctypes.c_char_p * 1)(header.encode()), (ctypes.c_char_p * 1)(HEADER.encode())
    compiler.nvrtcCreateProgram(ctypes.byref(program), code.encode(), file.encode(), 1, texts, names)
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    try:
        if compiler.nvrtcCompileProgram(program, len(options), encoded):
            raise CudaError(f"{file}: {_text(compiler, program, 'ProgramLog').decode(errors='replace')}")
        return _text(compiler, program, "CUBIN")
    finally:
        compiler.nvrtcDestroyProgram(ctypes.byref(program))


def _compiler_version(compiler: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    compiler.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _text(compiler: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(compiler, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(compiler, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw
