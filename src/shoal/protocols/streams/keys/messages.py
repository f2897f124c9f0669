"""Messages between a reader who lacks a key and somebody who may have it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.base.ids import Count, WireStreamId
from shoal.identity.wrapped_key import POINT_BYTES, KeyId, WrapBytes


class KeyRequest(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Give me this key. It is to be wrapped for my public key, which is that of my node id."""

    request: Count
    stream: WireStreamId
    key: KeyId
    public_key: Annotated[bytes, Meta(min_length=POINT_BYTES, max_length=POINT_BYTES)]


class KeyAnswer(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """The key; or none, for it is not here, or not for you."""

    request: Count
    sealed: WrapBytes | None
