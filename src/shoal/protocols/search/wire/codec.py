"""The codec port of search: whole frames."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.base.errors import MalformedMessage, OversizedMessage, UsageError
from shoal.kernel.codec import SEARCH
from shoal.protocols.search.limits import FRAME_BYTES_MAX
from shoal.protocols.search.messages import Message
from shoal.protocols.search.wire.bubbles import BUBBLE_FORMS
from shoal.protocols.search.wire.circle import CIRCLE_FORMS
from shoal.protocols.search.wire.clients import CLIENT_FORMS
from shoal.protocols.search.wire.forms import Form
from shoal.protocols.search.wire.tables import CODE_BYTES
from shoal.protocols.search.wire.users import USER_FORMS

_FORMS: tuple[Form, ...] = (*CIRCLE_FORMS, *BUBBLE_FORMS, *CLIENT_FORMS, *USER_FORMS)
_WRITERS = {form.message: form.write for form in _FORMS}
_READERS = {form.code.to_bytes(CODE_BYTES): form.read for form in _FORMS}


class SearchCodec:
    """Encodes trusted messages, decodes untrusted bytes."""

    number = SEARCH
    messages: tuple[type, ...] = tuple(_WRITERS)

    def encode(self, message: Any) -> bytes:
        """The bytes of one message; UsageError for more than a peer would read."""
        frame = _WRITERS[type(message)](message)
        if len(frame) > FRAME_BYTES_MAX:
            raise UsageError(
                f"a {type(message).__name__} of {len(frame)} bytes: send several,"
                f" {FRAME_BYTES_MAX} at most"
            )
        return frame

    def decode(self, frame: bytes) -> Message:
        """The message, or a RemoteError."""
        if len(frame) > FRAME_BYTES_MAX:
            raise OversizedMessage(f"{len(frame)} bytes, the limit is {FRAME_BYTES_MAX}")
        read = _READERS.get(frame[:CODE_BYTES])
        if read is None:
            raise MalformedMessage(f"no message begins with {frame[:CODE_BYTES].hex()}")
        try:
            message: Message = read(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(str(error)) from error
        return message
