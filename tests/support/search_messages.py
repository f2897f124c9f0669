"""Messages of the search protocol to test with: one of each kind, and strategies for all."""

from __future__ import annotations

from hypothesis import strategies as st

from shoal.base.ids import ADDRESS_CHARS_MAX, ADDRESSES_MAX, INT63_MAX, NodeId
from shoal.identity import SIGNATURE_BYTES, PrivateKey, SeededEntropy
from shoal.protocols.search.config import (
    BUBBLE_ID_BYTES,
    CONNECTION_TYPE_CHARS_MAX,
    EXTRA_NAME_CHARS_MAX,
    EXTRAS_MAX,
    HOPS_UNKNOWN,
    INT32_MAX,
    INT32_MIN,
    MATCH_ITEMS_MAX,
    NONCE_BYTES,
    OTHERS_MAX,
    REASON_CHARS_MAX,
    UINT32_MAX,
)
from shoal.protocols.search.messages import (
    BreakEdge,
    BubbleCast,
    Cancel,
    ClientDeny,
    ClientHello,
    ClientOk,
    ClientRedirect,
    EdgeClosed,
    EdgeName,
    MasterHello,
    Match,
    MergeEdge,
    Message,
    Ping,
    Redirect,
    SlaveHello,
    SplitEdge,
    Totals,
    UserAccept,
    UserConnect,
    UserData,
    UserEnd,
    UserRefuse,
)
from shoal.protocols.search.signed_records import (
    AddressRecord,
    BubbleHeader,
    sign_address,
    sign_header,
)
from shoal.protocols.search.wire import ACCEPTED
from tests.strategies import node_ids

KEY = PrivateKey.generate(SeededEntropy("search"))
HOME = "ws://10.171.14.140:4000"  # the address of the thesis' table 2.2
RECORD = sign_address(KEY, (HOME,), 1_700_000_000_000_000_000)
UNSIGNED = AddressRecord(NodeId(b"\x11" * 20), (HOME,), 1, b"\x22" * SIGNATURE_BYTES)
EDGE = EdgeName(5, -7, True)
TOTALS = Totals(1000.0, 6000.0, 36000.0)
PAYLOAD = b"title:air pm25:<10"
HEADER = sign_header(
    KEY, RECORD, kind=7, total=100, payload=PAYLOAD, nonce=b"nonce--8", expires_ms=1 << 41
)

EXAMPLES: list[Message] = [
    SplitEdge(EDGE, RECORD, -2, HOPS_UNKNOWN),
    SplitEdge(None, RECORD, 3, 0),
    MasterHello(5, -7, True, TOTALS, RECORD),
    SlaveHello(5, -7, TOTALS, RECORD),
    Redirect(EDGE, RECORD, 17),
    Cancel(EDGE),
    MergeEdge(EDGE, RECORD, 17),
    MergeEdge(EDGE, None, 0),
    BreakEdge(EDGE),
    EdgeClosed(EDGE),
    Ping(EDGE, UINT32_MAX, -(2**63), Totals(0.5, 1.5, 4.5), 0.25),
    Ping(None, 1, 2**63 - 1, TOTALS, 1.0, (("s:load", -1e300), ("min:c", -40.5), ("max:c", 0.1))),
    BubbleCast(EDGE, 9, 100, 3, 6, 7, HEADER, PAYLOAD),
    BubbleCast(None, 100, 100, 0, 100, 7, HEADER, PAYLOAD),
    Match(bytes(range(16)), (b"", b"an answer"), True),
    ClientHello(RECORD),
    ClientOk(TOTALS),
    ClientDeny("full"),
    ClientRedirect((RECORD, UNSIGNED)),
    UserConnect(1, "chat/2"),
    UserAccept(1),
    UserRefuse(UINT32_MAX, "no such type"),
    UserData(1, b"\0content"),
    UserEnd(0),
]


def _bytes(length: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=length, max_size=length)


_int32s = st.integers(INT32_MIN, INT32_MAX)
_uint32s = st.integers(0, UINT32_MAX)
_counts = st.integers(0, INT63_MAX)
_singles = st.floats(min_value=0, width=32, allow_nan=False, allow_infinity=False)
_part, _port = st.integers(0, 300), st.integers(0, 70_000)
_addresses = st.one_of(
    st.text(max_size=ADDRESS_CHARS_MAX),
    st.builds(
        "{}://{}.{}.{}.{}:{}".format, st.sampled_from(["ws", "wss", "http"]), *[_part] * 4, _port
    ),
)
edges = st.builds(EdgeName, _int32s, _int32s, st.booleans())
totals = st.builds(Totals, _singles, _singles, _singles)
records = st.builds(
    *(AddressRecord, node_ids),
    st.lists(_addresses, max_size=ADDRESSES_MAX).map(tuple),
    *(_counts, _bytes(SIGNATURE_BYTES)),
)
headers = st.builds(BubbleHeader, records, _bytes(NONCE_BYTES), _counts, _bytes(SIGNATURE_BYTES))
_columns = st.builds(
    "{}:{}".format,
    st.sampled_from(["s", "min", "max"]),
    st.text(
        st.characters(exclude_characters="\n", codec="utf-8"),
        min_size=1,
        max_size=EXTRA_NAME_CHARS_MAX,
    ),
)
_doubles = st.floats(allow_nan=False, allow_infinity=False)
_extras = st.dictionaries(_columns, _doubles, max_size=EXTRAS_MAX).map(lambda d: tuple(d.items()))
_slices = st.lists(st.integers(0, INT32_MAX - 1), min_size=4, max_size=4).map(sorted)
_ascii = st.characters(codec="ascii")
_visible = st.characters(min_codepoint=0x21, max_codepoint=0x7E)


@st.composite
def casts(draw: st.DrawFn) -> BubbleCast:
    """Any slice of any bubble, signed by nobody."""
    start, end, size, total = draw(_slices)
    edge, kind, payload = draw(st.none() | edges), draw(_int32s), draw(st.binary(max_size=300))
    return BubbleCast(edge, size + 1, total + 1, start, end + 1, kind, draw(headers), payload)


merges = st.one_of(
    st.builds(MergeEdge, edges, records, _int32s),
    st.builds(MergeEdge, edges, st.none(), st.just(0)),
)
refusals = st.text(_ascii, max_size=REASON_CHARS_MAX).filter(lambda text: text.encode() != ACCEPTED)

MESSAGES: dict[type, st.SearchStrategy[Message]] = {
    SplitEdge: st.builds(SplitEdge, st.none() | edges, records, _int32s, st.integers(0, INT32_MAX)),
    MasterHello: st.builds(MasterHello, _int32s, _int32s, st.booleans(), totals, records),
    SlaveHello: st.builds(SlaveHello, _int32s, _int32s, totals, records),
    Redirect: st.builds(Redirect, edges, records, _int32s),
    Cancel: st.builds(Cancel, edges),
    MergeEdge: merges,
    BreakEdge: st.builds(BreakEdge, edges),
    EdgeClosed: st.builds(EdgeClosed, edges),
    Ping: st.builds(
        *(Ping, st.none() | edges, _uint32s, st.integers(-(2**63), 2**63 - 1)),
        *(totals, _singles, _extras),
    ),
    BubbleCast: casts(),
    Match: st.builds(
        *(Match, _bytes(BUBBLE_ID_BYTES)),
        st.lists(st.binary(max_size=50), max_size=MATCH_ITEMS_MAX).map(tuple),
        st.booleans(),
    ),
    ClientHello: st.builds(ClientHello, records),
    ClientOk: st.builds(ClientOk, totals),
    ClientDeny: st.builds(ClientDeny, st.text(max_size=REASON_CHARS_MAX)),
    ClientRedirect: st.builds(ClientRedirect, st.lists(records, max_size=OTHERS_MAX).map(tuple)),
    UserConnect: st.builds(
        UserConnect, _uint32s, st.text(_visible, min_size=1, max_size=CONNECTION_TYPE_CHARS_MAX)
    ),
    UserAccept: st.builds(UserAccept, _uint32s),
    UserRefuse: st.builds(UserRefuse, _uint32s, refusals),
    UserData: st.builds(UserData, _uint32s, st.binary(max_size=300)),
    UserEnd: st.builds(UserEnd, _uint32s),
}
