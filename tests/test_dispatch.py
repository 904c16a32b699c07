"""Threads that use torch's dispatch to Python wait for each other."""

from __future__ import annotations

from threading import Event, Thread
from typing import Any

from zoo import build_model
from zoo.run.flops import model_flops


def test_one_thread_at_a_time_counts_operations() -> None:
    """Of twenty threads that read a run, some ended with a segmentation fault, see `dispatched_alone`."""
    sizes: dict[str, Any] = {"vocab_size": 16, "d_model": 8, "n_layers": 1, "n_heads": 2, "d_mlp": 16}
    first, second = (build_model("gpt", **sizes, device="meta") for _ in range(2))
    entered, together, counts = Event(), [], []
    other = Thread(target=lambda: counts.append(model_flops(second, second.example(1, 8))))

    def during_the_first(*_: object) -> None:
        other.start()
        together.append(entered.wait(0.5))

    first.register_forward_pre_hook(during_the_first)
    second.register_forward_pre_hook(lambda *_: entered.set())
    counts.append(model_flops(first, first.example(1, 8)))
    other.join()
    assert together == [False]
    assert entered.is_set()
    assert counts[0] == counts[1]
