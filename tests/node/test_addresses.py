"""Where addresses lead."""

from __future__ import annotations

import pytest

from shoal.config.sections import is_local, is_loopback


@pytest.mark.parametrize(
    ("listen", "local"),
    [
        (["ws://127.0.0.1:1", "ws://[::1]:2", "wss://localhost:3"], True),
        (["ws://127.0.0.1:1", "ws://192.0.2.1:2"], False),
        (["ws://127.0.0.1:1", "webrtc:"], True),
        (["ws://192.0.2.1:2", "webrtc:"], False),
        (["webrtc:"], False),
        ([], True),
    ],
)
def test_a_network_is_local_if_all_that_is_dialled_is(listen: list[str], local: bool) -> None:
    assert is_local(listen) is local


def test_what_is_no_address_is_not_on_this_machine() -> None:
    """Registries list what others wrote there."""
    assert not any(map(is_loopback, ("ws://[::1", "", "webrtc:", "ws://127.0.0.1.:x", "::1")))
