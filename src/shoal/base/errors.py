"""The one error tree.

    ShoalError
    ├── UsageError             ours: a caller asked for something that cannot be
    │   ├── ConfigError        a file or setting says something impossible
    │   ├── NotFound           a name that does not exist
    │   ├── OffsetExpired      rows of a log that retention has let go of
    │   ├── RegistryRefused    the registry's contracts do not allow it
    │   └── NotPermitted       the registry does not allow this key to publish, or to subscribe
    ├── StreamUnavailable      no tracker or neighbour of a stream can be reached
    ├── HistoryUnavailable     nobody answered who should: storage nodes, or trackers that name them
    │   └── HistoryIncomplete  some did not: what the others have was given, and there may be more
    ├── TopicUnavailable       nobody answered, had or kept what a durable topic is made of
    ├── ClockWrong             this node's clock is off: what it publishes would be refused
    ├── SessionReplaced       a newer session of this node's key runs elsewhere
    ├── SearchUnavailable      the search network, or a node in it, cannot be reached
    ├── RegistryUnavailable    the registry's chain cannot be reached, or what is known of it is old
    ├── RegistryDamaged        an embedded registry's file that cannot be used
    ├── IdentityError          keys, keystores, decryption
    │   ├── KeystoreError      a keystore file that cannot be used
    │   ├── WrongPassphrase    the passphrase does not open this keystore
    │   └── DecryptionFailed   wrong key, or the text was changed
    ├── RemoteError            theirs: a peer sent what it must not; never leaves the link
    │   ├── MalformedMessage   bytes that are no message
    │   ├── OversizedMessage   more bytes than the limit
    │   └── BadSignature       a signature that no key made over these bytes
    └── InvariantViolated      a bug in Shoal: state that must not exist

Local misuse always raises. A remote fault never crashes a node: whoever reads from a peer
catches RemoteError, counts it, and goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.base.ids import MessageId


class ShoalError(Exception):
    """Everything that Shoal raises on purpose."""


class UsageError(ShoalError, ValueError):
    """A caller asked for something that cannot be; the message names the value and the remedy."""


class ConfigError(UsageError):
    """A file or setting says something impossible."""


class NotFound(UsageError):
    """A name that does not exist; the message names the command that creates it."""


class OffsetExpired(UsageError):
    """Rows of a log that retention has let go of; first_seq to last_seq are available."""

    def __init__(self, text: str, *, first_seq: int = 1, last_seq: int = 0) -> None:
        super().__init__(text)
        self.first_seq = first_seq
        self.last_seq = last_seq


class StreamUnavailable(ShoalError):
    """A stream's tracker does not answer, or no neighbour in it can be reached; it may be later."""


class HistoryUnavailable(ShoalError):
    """Nobody who keeps a stream could give, or keep, what was asked; it may be otherwise later."""

    def __init__(
        self, text: str, *, message: MessageId | None = None, refused: bool = False
    ) -> None:
        super().__init__(text)
        self.message = message
        """The message that was published and has no copies yet; the node that published it goes on
        trying, and `Stream.retry` waits for it under this id."""
        self.refused = refused
        """All storage nodes refuse the message, and trying again does not help."""


class HistoryIncomplete(HistoryUnavailable):
    """What was found of a history was given, and a storage node that was not heard may have more;
    the message names it, and up to when its messages are there. It may be otherwise later."""


class TopicUnavailable(ShoalError):
    """Nobody gave or kept what was asked of a durable topic; it may be otherwise later."""

    def __init__(self, text: str, *, replicas: int = 0) -> None:
        super().__init__(text)
        self.replicas = replicas
        """How many other nodes keep the event, if that was the question."""


class ClockWrong(ShoalError):
    """This node's clock is off, or was just set: what it published now would be refused."""


class SessionReplaced(ShoalError):
    """A newer session of this node's key runs elsewhere: this one publishes and keeps nothing."""


class SearchUnavailable(ShoalError):
    """The search network, or the other end of a connection, is not there; it may be later."""


class RegistryRefused(UsageError):
    """The registry's contracts do not allow what was asked; the message is their reason."""


class NotPermitted(UsageError):
    """This key may not do this with a stream; the message names the command that allows it."""


class RegistryUnavailable(ShoalError):
    """The registry's chain cannot be reached, or what is known of it is too old to act upon."""


class RegistryDamaged(ShoalError):
    """The file of an embedded registry is not as it was written."""


class IdentityError(ShoalError):
    """Keys, keystores, decryption."""


class KeystoreError(IdentityError):
    """A keystore file that cannot be used."""


class WrongPassphrase(IdentityError):
    """The passphrase does not open this keystore."""


class DecryptionFailed(IdentityError):
    """Wrong key, or the ciphertext or its associated data was changed."""


class RemoteError(ShoalError):
    """A peer sent what it must not. Caught, counted and dropped at the link it came in on."""


class MalformedMessage(RemoteError):
    """Bytes that are no message of the protocol."""


class OversizedMessage(RemoteError):
    """More bytes than the limit allows."""


class BadSignature(RemoteError):
    """A signature that no key made over these bytes."""


class InvariantViolated(ShoalError, AssertionError):
    """A bug in Shoal: a machine holds state that must not exist."""
