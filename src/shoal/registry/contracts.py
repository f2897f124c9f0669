"""The compiled contracts of the package: their code, functions and events.

contracts/*.vy are compiled by scripts/contracts; what they are compiled to ships with Shoal.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from shoal.base.errors import MalformedMessage
from shoal.identity.signatures import keccak256
from shoal.registry.abi import WORD_BYTES, decode, tuple_of, type_name
from shoal.registry.chain import Log

_ERROR_SELECTOR = keccak256(b"Error(string)")[:4]
_ERROR = tuple_of([{"type": "string"}])


class Function:
    """A function of a contract."""

    def __init__(self, entry: dict[str, Any]) -> None:
        """As the compiler describes it."""
        self._inputs = tuple_of(entry["inputs"])
        self._outputs = tuple_of(entry["outputs"])
        types = ",".join(type_name(part) for part in entry["inputs"])
        self._selector = keccak256(f"{entry['name']}({types})".encode())[:4]

    def call(self, *arguments: Any) -> bytes:
        """What a transaction or a call carries."""
        return self._selector + self._inputs.encode(arguments)

    def result(self, data: bytes) -> Any:
        """What it gave; all of ours give one value."""
        return decode(self._outputs, data)[0]


class Event:
    """An event of a contract."""

    def __init__(self, entry: dict[str, Any]) -> None:
        """As the compiler describes it."""
        self.name: str = entry["name"]
        inputs = entry["inputs"]
        self.topic = keccak256(f"{self.name}({','.join(map(type_name, inputs))})".encode())
        self._indexed = [part for part in inputs if part["indexed"]]
        self._others = [part for part in inputs if not part["indexed"]]
        self._topics, self._data = tuple_of(self._indexed), tuple_of(self._others)

    def values(self, log: Log) -> dict[str, Any]:
        """Its parameters by name; MalformedMessage if the log is not of this kind."""
        if len(log.topics) != 1 + len(self._indexed):
            raise MalformedMessage(f"a log of {self.name} has {len(log.topics)} topics")
        found = (*decode(self._topics, b"".join(log.topics[1:])), *decode(self._data, log.data))
        names = (part["name"] for part in (*self._indexed, *self._others))
        return dict(zip(names, found, strict=True))


class _Compiled(msgspec.Struct, frozen=True):
    abi: list[dict[str, Any]]
    bytecode: str


class Contract:
    """One compiled contract."""

    def __init__(self, name: str) -> None:
        """By the name of its source."""
        raw = files("shoal.registry").joinpath("compiled", f"{name}.json").read_bytes()
        compiled = msgspec.json.decode(raw, type=_Compiled)
        self._code = bytes.fromhex(compiled.bytecode.removeprefix("0x"))
        kinds: dict[str, list[dict[str, Any]]] = {}
        for entry in compiled.abi:
            kinds.setdefault(entry["type"], []).append(entry)
        self.functions = {entry["name"]: Function(entry) for entry in kinds["function"]}
        events = map(Event, kinds["event"])
        self._events = {event.topic: event for event in events}
        self._constructor = tuple_of(kinds["constructor"][0]["inputs"])

    def deployment(self, *arguments: Any) -> bytes:
        """What a transaction carries that makes one."""
        return self._code + self._constructor.encode(arguments)

    def event(self, log: Log) -> Event | None:
        """Which of its events a log is."""
        return self._events.get(log.topics[0]) if log.topics else None


@cache
def streams() -> Contract:
    """contracts/Streams.vy"""
    return Contract("Streams")


@cache
def directory() -> Contract:
    """contracts/Directory.vy"""
    return Contract("Directory")


def revert_reason(output: bytes) -> str:
    """What a contract said when it refused."""
    if output[:4] != _ERROR_SELECTOR or len(output) % WORD_BYTES != 4:
        return "the contract refused it without a reason"
    try:
        (text,) = decode(_ERROR, output[4:])
    except MalformedMessage:
        return "the contract refused it with an unreadable reason"
    return str(text)
