"""A queue that lets the oldest go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.base.containers import BoundedQueue


@given(
    count_max=st.integers(1, 5),
    bytes_max=st.integers(0, 50),
    sizes=st.lists(st.integers(0, 60) | st.none(), max_size=40),
)
def test_it_holds_the_newest_that_fit_and_gives_up_the_others(
    count_max: int, bytes_max: int, sizes: list[int | None]
) -> None:
    queue: BoundedQueue[tuple[int, int]] = BoundedQueue(count_max, bytes_max)
    waiting: list[tuple[int, int]] = []
    for number, size in enumerate(sizes):
        if size is not None:
            waiting.append((number, size))
            gone = queue.put((number, size), size)
            assert waiting[: len(gone)] == gone
            del waiting[: len(gone)]
            if gone:  # not one more than had to
                kept = [gone[-1], *waiting]
                assert len(kept) > count_max or sum(each for _, each in kept) > bytes_max
        elif waiting:
            assert queue.take() == waiting.pop(0)
        assert len(queue) == len(waiting) <= count_max
        assert queue.size_bytes == sum(each for _, each in waiting)
        assert queue.size_bytes <= bytes_max or len(waiting) == 1
