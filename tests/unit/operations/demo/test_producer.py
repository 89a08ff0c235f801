"""The pace of the demo's stream."""

from __future__ import annotations

from headgate.operations.demo.producer import (
    DURATION_S,
    RESERVE_SHARE,
    STRIDE,
    TRICKLE,
    seconds_before_stride,
)


def test_an_even_pace_lasts_as_long_as_it_should() -> None:
    strides = [
        seconds_before_stride(number, 40_000, released=True) for number in range(0, 40_000, STRIDE)
    ]
    assert round(sum(strides), 6) == DURATION_S
    assert len(set(strides)) == 1


def test_the_reserve_trickles_until_it_is_released() -> None:
    first = round(40_000 * (1 - RESERVE_SHARE))
    even = seconds_before_stride(0, 40_000, released=False)
    assert seconds_before_stride(first - 1, 40_000, released=False) == even
    assert seconds_before_stride(first, 40_000, released=False) == even * TRICKLE
    assert seconds_before_stride(first, 40_000, released=True) == even
