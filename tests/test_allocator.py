"""The memory that a step frees serves the next step."""

from __future__ import annotations

import os
import platform
import resource

import pytest
import torch

from zoo.utils.allocator import HUGE_PAGES, ask_for_huge_pages, keep_freed_memory

ROUNDS, ENTRIES, PAGE = 8, 2**22, 4096


def page_faults() -> int:
    """The page faults while some large tensors are made and freed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(ROUNDS):
        (torch.ones(ENTRIES) * 2).sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    assert keep_freed_memory()
    page_faults()
    # At most those of one tensor, where a hole that earlier tests left does not fit; there were 2 a round.
    assert page_faults() <= 4 * ENTRIES / PAGE


def test_the_environment_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "0")
    assert not keep_freed_memory()
    (name,) = HUGE_PAGES
    monkeypatch.setenv(name, "0")
    ask_for_huge_pages()
    with pytest.MonkeyPatch.context() as patch:
        assert os.environ[name] == "0"
        patch.delenv(name)
        ask_for_huge_pages()
        assert os.environ[name] == "1"
