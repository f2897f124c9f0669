"""Those sections of a network file that let in who is no node: Spark, HTTP, MQTT."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shoal.base.errors import ConfigError
from shoal.base.ids import parse_stream_id
from shoal.identity import split_secret_source
from shoal.node.addresses import check_origins, is_url


class OutboxSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[outbox]: Spark queries publish through this node."""

    token: str
    """Where the token is that they show, env:NAME or file:PATH."""
    folder: str = "outbox"
    megabytes_max: Annotated[float, Meta(gt=0)] = 256.0
    """What it holds until it is published; then queries have to wait."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        split_secret_source("token", self.token)


class GatewaySection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[gateway]: HTTP for people and programs."""

    listen: str = "127.0.0.1:0"
    keys: str | None = None
    """The file of API keys; with it nobody comes in without one."""
    open_to_all: bool = False
    """Serve beyond loopback without keys."""
    certificate: str | None = None
    private_key: str | None = None
    """PEM files, for https://; one file may have both."""
    origins: tuple[str, ...] = ()
    """Web pages of these origins may use it; "*" is all of them."""
    hosts: tuple[str, ...] = ()
    """More names under which a gateway on loopback is reached, as behind a proxy."""
    requests_per_s: Annotated[float, Meta(gt=0)] = 1_000.0
    burst: Annotated[int, Meta(ge=1)] = 2_000
    """Of one key, and of one address."""
    explorer: bool = True
    """Whether it serves the explorer; if there are keys, what that shows needs one, too."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if self.private_key is not None and self.certificate is None:
            raise ConfigError("private_key: it is of no use without its certificate: name both")
        check_origins(self.origins)


class MqttMapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[mqtt.mappings]]: an MQTT topic and a stream that are one."""

    topic: Annotated[str, Meta(min_length=1, max_length=1024)]
    stream: str
    direction: Literal["in", "out", "both"] = "in"
    """in: from the broker into the stream; out: from the stream to the broker."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        parse_stream_id(self.stream)
        levels = self.topic.split("/")
        wild = [level for level in levels if "+" in level or "#" in level]
        if any(level not in ("+", "#") for level in wild) or "#" in levels[:-1]:
            raise ConfigError(
                f"topic: {self.topic!r} is no pattern: + stands for a level, # for all at the end"
            )
        if wild and self.direction != "in":
            raise ConfigError(
                f"topic: {self.topic!r} is many topics, so nothing can be sent to it: write"
                ' direction = "in"'
            )


class MqttSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[mqtt]: a bridge to an MQTT broker."""

    broker: str
    """mqtt://HOST:PORT, or mqtts://HOST:PORT."""
    mappings: Annotated[tuple[MqttMapping, ...], Meta(min_length=1, max_length=1_000)]
    version: Literal["5", "3.1.1"] = "5"
    user: str | None = None
    password: str | None = None
    """Where it is, env:NAME or file:PATH."""
    authority: str | None = None
    """PEM file of who signed the broker's certificate; without it, whom the machine trusts."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if not is_url(self.broker, "mqtt", "mqtts", port=True):
            raise ConfigError(f"broker: {self.broker!r} is no address: write mqtt://HOST:PORT")
        if self.password is not None:
            split_secret_source("password", self.password)
            if self.user is None:
                raise ConfigError("password: whose? name the user, too")
