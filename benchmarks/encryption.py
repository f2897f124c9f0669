"""What encryption costs: CPU microseconds per message, beside the plain and a signature check.

    .venv/bin/python benchmarks/encryption.py [--json] [--messages 5000] [--size 300] [--rounds 5]

    publish          a message made and signed, in the clear and sealed
    open             a sealed message opened by a reader, and its content made readable
    signature check  of the same message, which every hop does
    wrap, unwrap     a key for one reader: once for each reader and key, not for each message

The best of several rounds, as others share the machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import msgspec

from shoal.base.ids import StreamId
from shoal.identity import PrivateKey, SeededEntropy, verify_signed
from shoal.identity.group_key import GroupKey, Sealer, unwrap_key, wrap_key
from shoal.identity.message_body import BINARY
from shoal.protocols.streams.signed_message import Publisher, Seal, VerifiedMessage

STREAM = StreamId("0x" + "11" * 20 + "/city/vehicles")
START_NS = 1_700_000_000_000_000_000
WRAPS = 200


def cpu_us(count: int, rounds: int, work: Callable[[], object]) -> float:
    """CPU microseconds of one of so many, in the best round."""
    best_s = float("inf")
    for _ in range(rounds):
        begin_s = time.process_time()
        work()
        best_s = min(best_s, time.process_time() - begin_s)
    return best_s / count * 1e6


def measure(messages: int, size: int, rounds: int) -> dict[str, float]:
    """All figures, by name."""
    entropy = SeededEntropy("benchmark")
    key, reader = PrivateKey.generate(entropy), PrivateKey.generate(entropy)
    sealer = Sealer(GroupKey.generate(STREAM, key.address, entropy))
    publisher = Publisher(key.address, "c", key.sign)
    content = entropy.token(size)

    def publish(seal: Seal | None) -> list[VerifiedMessage]:
        return [publisher.make(STREAM, 0, BINARY, content, START_NS, seal) for _ in range(messages)]

    sealed = publish(sealer.seal)
    verify_signed(key.address, sealed[0].signed)  # its key is known from then on, as at every hop
    wrap = wrap_key(sealer.key, reader.public, entropy)

    def unwrap() -> None:
        for _ in range(WRAPS):
            unwrap_key(STREAM, key.address, sealer.key.id, wrap.sealed, reader)

    return {
        "publish_plain_us": cpu_us(messages, rounds, lambda: publish(None)),
        "publish_sealed_us": cpu_us(messages, rounds, lambda: publish(sealer.seal)),
        "open_us": cpu_us(
            messages, rounds, lambda: [sealer.key.open(m.id, m.content) for m in sealed]
        ),
        "signature_check_us": cpu_us(
            messages, rounds, lambda: [verify_signed(key.address, m.signed) for m in sealed]
        ),
        "wrap_us": cpu_us(
            WRAPS,
            rounds,
            lambda: [wrap_key(sealer.key, reader.public, entropy) for _ in range(WRAPS)],
        ),
        "unwrap_us": cpu_us(WRAPS, rounds, unwrap),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--size", type=int, default=300, help="bytes of content")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    found = measure(arguments.messages, arguments.size, arguments.rounds)
    if arguments.json:
        print(msgspec.json.encode(found).decode())
        return
    check_us = found["signature_check_us"]
    print(f"CPU of a message of {arguments.size} bytes; a signature check is 1")
    for name, us in found.items():
        print(f"{name.removesuffix('_us').replace('_', ' '):>16}{us:8.1f} µs{us / check_us:8.2f}")


if __name__ == "__main__":
    main()
