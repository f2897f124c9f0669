"""Machines and messages of no protocol, for tests of what drives machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from shoal.base.errors import MalformedMessage
from shoal.base.ids import NodeId, node_id
from shoal.kernel.effects import Effect, Send
from shoal.kernel.inputs import CommandIssued, Input, MessageReceived

React = Callable[[Any], Sequence[Effect]]


def peer_id(number: int) -> NodeId:
    """The id of some node, readable in a failure."""
    return node_id(number.to_bytes(20, "big"))


class Note(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A message; padding makes it long."""

    number: int
    padding: bytes = b""


class Echo(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The answer to a Note."""

    number: int


class Other(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A message that Scripted machines do not accept unless told to."""


class NoteCodec:
    """The codec of these messages."""

    number = 99
    messages: tuple[type, ...] = (Note, Echo, Other)

    def encode(self, message: Any) -> bytes:
        return msgspec.msgpack.encode(message)

    def decode(self, frame: bytes) -> Any:
        try:
            return msgspec.msgpack.decode(frame, type=Note | Echo | Other)
        except msgspec.MsgspecError as error:
            raise MalformedMessage(str(error)) from error


class Scripted:
    """Does what a command says (its effects), or what `react` says, and remembers what it heard."""

    def __init__(
        self, accepts: tuple[type, ...] = (Note, Echo), react: React | None = None
    ) -> None:
        self.accepts = accepts
        self.react = react
        self.inputs: list[Input] = []
        self.times_ns: list[int] = []

    def handle(self, event: Input, now_ns: int) -> Sequence[Effect]:
        self.inputs.append(event)
        self.times_ns.append(now_ns)
        if isinstance(event, CommandIssued):
            effects: Sequence[Effect] = event.command
            return effects
        return self.react(event) if self.react is not None else ()

    def check_invariants(self) -> None:
        """There is nothing to break."""

    def heard(self, *kinds: type[Input]) -> list[Input]:
        """Inputs in order, of some kinds, or all but commands."""
        if kinds:
            return [event for event in self.inputs if isinstance(event, kinds)]
        return [event for event in self.inputs if not isinstance(event, CommandIssued)]

    def notes(self) -> list[int]:
        """The numbers of the Notes and Echoes that came in."""
        return [event.message.number for event in self.inputs if isinstance(event, MessageReceived)]

    def forget(self) -> None:
        """Hear anew."""
        self.inputs.clear()
        self.times_ns.clear()


def echo(event: Input) -> Sequence[Effect]:
    """Answers every Note."""
    match event:
        case MessageReceived(peer, Note(number)):
            return [Send(Echo(number), (peer,))]
        case _:
            return ()
