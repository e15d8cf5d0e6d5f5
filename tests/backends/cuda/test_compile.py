"""Run-time compilation of CUDA source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quicksilver.backends.cuda import compile as compile_module
from quicksilver.backends.cuda.compile import CudaError, compile_binary


def test_without_nvrtc_the_error_names_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "find_compiler", lambda: None)
    with pytest.raises(CudaError, match="libnvrtc is missing"):
        compile_binary("layer_fused", {}, (9, 0))


class FakeCompiler:
    """The functions of NVRTC that are called, with the options as the binary."""

    def __init__(self, minor: int = 8, status: int = 0) -> None:
        self.compiled: list[list[bytes]] = []
        self._minor, self._status = minor, status

    def nvrtcVersion(self, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 12, self._minor
        return 0

    def nvrtcCreateProgram(self, program: Any, code: bytes, file: bytes, num: int, texts: Any, names: Any) -> int:
        assert (num, names[0]) == (1, b"device.cuh")
        assert texts[0] == compile_module.source("device.cuh").encode()
        return 0

    def nvrtcCompileProgram(self, program: Any, num_options: int, options: Any) -> int:
        self.compiled.append(list(options[:num_options]))
        return self._status

    def nvrtcDestroyProgram(self, program: Any) -> int:
        return 0

    def _get_size(self, program: Any, size: Any) -> int:
        size._obj.value = len(b" ".join(self.compiled[-1]))
        return 0

    def _get(self, program: Any, buffer: Any) -> int:
        buffer.raw = b" ".join(self.compiled[-1])
        return 0

    nvrtcGetCUBINSize = nvrtcGetProgramLogSize = _get_size
    nvrtcGetCUBIN = nvrtcGetProgramLog = _get


def compiler(monkeypatch: pytest.MonkeyPatch, fake: FakeCompiler) -> FakeCompiler:
    monkeypatch.setattr(compile_module, "find_compiler", lambda: fake)
    return fake


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUICKSILVER_HOME", str(tmp_path))
    return tmp_path


def test_a_binary_of_the_same_source_is_read_from_disk(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiler(monkeypatch, FakeCompiler())
    binary = compile_binary("layer_fused", {"ROWS": 16}, (9, 0))
    assert binary == b"--gpu-architecture=sm_90a --std=c++17 -DROWS=16"
    assert len(list((home / "cuda").iterdir())) == 1
    later = compiler(monkeypatch, FakeCompiler())
    assert compile_binary("layer_fused", {"ROWS": 16}, (9, 0)) == binary
    assert (len(first.compiled), len(later.compiled)) == (1, 0)


def test_macros_capability_source_and_compiler_make_another_binary(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = compiler(monkeypatch, FakeCompiler())
    compile_binary("layer_fused", {"ROWS": 16}, (9, 0))
    compile_binary("layer_fused", {"ROWS": 32}, (9, 0))
    compile_binary("layer_fused", {"ROWS": 16}, (10, 0))
    assert len(fake.compiled) == 3
    newer = compiler(monkeypatch, FakeCompiler(minor=9))
    compile_binary("layer_fused", {"ROWS": 16}, (9, 0))
    text = compile_module.source
    monkeypatch.setattr(compile_module, "source", lambda name: text(name) + "\n")
    compile_binary("layer_fused", {"ROWS": 16}, (9, 0))
    assert len(newer.compiled) == 2
    assert len(list((home / "cuda").iterdir())) == 5


def test_an_error_has_the_compilers_log_and_is_not_stored(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(monkeypatch, FakeCompiler(status=6))
    with pytest.raises(CudaError, match=r"layer_fused\.cu: --gpu-architecture=sm_90a"):
        compile_binary("layer_fused", {}, (9, 0))
    assert not (home / "cuda").exists()
