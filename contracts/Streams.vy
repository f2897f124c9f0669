# pragma version ==0.4.3
# pragma evm-version cancun
"""
@title Streams and who may do what with them
@notice A stream is known by its owner's address and a path. The owner may do everything, always.
        Others have permissions that end at a time of their own; those of nobody (the zero address)
        are everybody's.
"""

PATH_BYTES_MAX: constant(uint256) = 213  # with the owner and a slash, the 256 of a stream id
METADATA_BYTES_MAX: constant(uint256) = 2048
PARTITIONS_MAX: constant(uint256) = 100
DEGREE_MIN: constant(uint256) = 3
DEGREE_MAX: constant(uint256) = 64
NODES_MAX: constant(uint256) = 16  # trackers, and storage nodes, of one stream
WHOM_MAX: constant(uint256) = 64
MEMBERS_MAX: constant(uint256) = 2**16  # of one life of a stream, in its list

# Kinds of permissions, as bits of a set.
EDIT: constant(uint256) = 1
DELETE: constant(uint256) = 2
PUBLISH: constant(uint256) = 4
SUBSCRIBE: constant(uint256) = 8
GRANT: constant(uint256) = 16
KINDS: constant(uint256) = 5
ALL: constant(uint256) = 31

# When a permission ends, in seconds since 1970: it holds before that time. 0: never had.
EXPIRY_BITS: constant(uint256) = 48
FOREVER: constant(uint256) = 2**48 - 1
ALL_FOREVER: constant(uint256) = 2**240 - 1
LISTED: constant(uint256) = 2**240  # above the times: the address is in the list of members

struct Stream:
    metadata: String[METADATA_BYTES_MAX]
    partitions: uint256  # 0: there is no such stream
    degree: uint256  # 0: the tracker's own
    trackers: DynArray[address, NODES_MAX]  # in order of preference; none: by hash, over all
    storage_nodes: DynArray[address, NODES_MAX]

struct PublicKey:
    x: uint256  # a point of secp256k1; 0 and 0: not known
    y: uint256

event StreamCreated:
    owner: indexed(address)
    path: String[PATH_BYTES_MAX]

event StreamEdited:
    owner: indexed(address)
    by: indexed(address)
    path: String[PATH_BYTES_MAX]

event StreamDeleted:
    owner: indexed(address)
    by: indexed(address)
    path: String[PATH_BYTES_MAX]

event PermissionsSet:
    owner: indexed(address)
    who: indexed(address)
    by: indexed(address)
    path: String[PATH_BYTES_MAX]
    kinds: uint256
    expires: uint256

event PublicKeyPut:
    who: indexed(address)

trackers: public(immutable(address))
storage_nodes: public(immutable(address))
_streams: HashMap[bytes32, Stream]
# How often the stream was created. Permissions belong to one life: who had some in an earlier one
# has none in the next.
_life: HashMap[bytes32, uint256]
# Of a life and an address: five times of expiry, 48 bits each, those of EDIT lowest. One slot holds
# all of them, so that any set of permissions is given by one write and read by one.
_permissions: HashMap[bytes32, HashMap[address, uint256]]
# Of a life: every address that was given something, in the order of the first time. Publishers wrap
# the keys of a stream that is encrypted for those of them who may read it.
_members: HashMap[bytes32, DynArray[address, MEMBERS_MAX]]
# An address is the hash of a key: whoever has the key may be written to, before it was ever seen.
_public_keys: HashMap[address, PublicKey]


@deploy
def __init__(tracker_directory: address, storage_directory: address):
    trackers = tracker_directory
    storage_nodes = storage_directory


@external
def create_stream(path: String[PATH_BYTES_MAX], stream: Stream):
    """
    @notice Make a stream of the sender's.
    """
    assert len(path) > 0, "a stream has a path"
    self._check(stream)
    key: bytes32 = self._key(msg.sender, path)
    assert self._streams[key].partitions == 0, "there is such a stream already"
    self._life[key] += 1
    self._streams[key] = stream
    log StreamCreated(owner=msg.sender, path=path)


@external
def edit_stream(owner: address, path: String[PATH_BYTES_MAX], stream: Stream):
    """
    @notice Replace what was said of a stream.
    """
    self._check(stream)
    key: bytes32 = self._key(owner, path)
    self._require(key, owner, EDIT)
    self._streams[key] = stream
    log StreamEdited(owner=owner, by=msg.sender, path=path)


@external
def delete_stream(owner: address, path: String[PATH_BYTES_MAX]):
    """
    @notice End a stream and all permissions on it.
    """
    key: bytes32 = self._key(owner, path)
    self._require(key, owner, DELETE)
    # No partitions is no stream; wiping the rest would cost more than it gives back.
    self._streams[key].partitions = 0
    log StreamDeleted(owner=owner, by=msg.sender, path=path)


@external
def set_permissions(
    owner: address,
    path: String[PATH_BYTES_MAX],
    whom: DynArray[address, WHOM_MAX],
    kinds: uint256,
    expires: uint256,
):
    """
    @notice Give each of these addresses these kinds of permissions until a time; 0 takes them away.
            Other kinds that they have stay as they are. Whoever may grant hands on publish and
            subscribe; edit, delete and grant are the owner's to give, or a right to grant that has
            expired would live on in others.
    """
    key: bytes32 = self._key(owner, path)
    self._require(key, owner, GRANT)
    assert kinds > 0 and kinds <= ALL, "no such kinds of permissions"
    assert expires <= FOREVER, "no such time"
    simple: bool = kinds & (EDIT | DELETE | GRANT) == 0
    assert simple or msg.sender == owner, "only the owner gives or takes edit, delete and grant"
    life: bytes32 = self._life_key(key)
    for who: address in whom:
        assert who != owner, "the owner may do everything already"
        assert simple or who != empty(address), "everybody may publish and subscribe at most"
        packed: uint256 = self._permissions[life][who]
        for kind: uint256 in range(KINDS):
            if kinds & (1 << kind) != 0:
                place: uint256 = kind * EXPIRY_BITS
                packed = (packed & ~(FOREVER << place)) | (expires << place)
        if packed & LISTED == 0 and who != empty(address):
            if len(self._members[life]) < MEMBERS_MAX:
                self._members[life].append(who)
                packed |= LISTED
        self._permissions[life][who] = packed
        log PermissionsSet(
            owner=owner, who=who, by=msg.sender, path=path, kinds=kinds, expires=expires
        )


@external
def put_public_key(x: uint256, y: uint256):
    """
    @notice Make a public key known. Anybody may: it is that of one address, and no other.
    """
    who: address = convert(convert(keccak256(abi_encode(x, y)), uint256) & (2**160 - 1), address)
    self._public_keys[who] = PublicKey(x=x, y=y)
    log PublicKeyPut(who=who)


@external
@view
def stream(owner: address, path: String[PATH_BYTES_MAX]) -> Stream:
    """
    @notice What was said of a stream; no partitions: there is none.
    """
    found: Stream = self._streams[self._key(owner, path)]
    return found if found.partitions > 0 else empty(Stream)


@external
@view
def permissions(
    owner: address, path: String[PATH_BYTES_MAX], whom: DynArray[address, WHOM_MAX]
) -> DynArray[uint256, WHOM_MAX]:
    """
    @notice The five times of expiry of each of these addresses, without what is everybody's.
    """
    key: bytes32 = self._key(owner, path)
    found: DynArray[uint256, WHOM_MAX] = []
    for who: address in whom:
        found.append(self._packed(key, owner, who))
    return found


@external
@view
def members(
    owner: address, path: String[PATH_BYTES_MAX], start: uint256
) -> DynArray[address, WHOM_MAX]:
    """
    @notice Addresses that have, or had, permissions of their own, from a place in their list on.
    """
    found: DynArray[address, WHOM_MAX] = []
    key: bytes32 = self._key(owner, path)
    if self._streams[key].partitions == 0:
        return found
    life: bytes32 = self._life_key(key)
    count: uint256 = len(self._members[life])
    for place: uint256 in range(start, start + WHOM_MAX, bound=WHOM_MAX):
        if place >= count:
            break
        found.append(self._members[life][place])
    return found


@external
@view
def public_keys(whom: DynArray[address, WHOM_MAX]) -> DynArray[PublicKey, WHOM_MAX]:
    """
    @notice The public keys of these addresses, as far as they are known.
    """
    found: DynArray[PublicKey, WHOM_MAX] = []
    for who: address in whom:
        found.append(self._public_keys[who])
    return found


@internal
@view
def _require(key: bytes32, owner: address, kind: uint256):
    """
    @dev That the stream exists and the sender has this kind of permission now. Never by what is
         everybody's: these kinds cannot be.
    """
    assert self._streams[key].partitions > 0, "there is no such stream"
    ends: uint256 = self._packed(key, owner, msg.sender)
    for place: uint256 in range(KINDS):
        if kind == 1 << place:
            ends = (ends >> (place * EXPIRY_BITS)) & FOREVER
            break
    assert ends > block.timestamp, "the sender lacks the permission for this"


@internal
@view
def _packed(key: bytes32, owner: address, who: address) -> uint256:
    if self._streams[key].partitions == 0:
        return 0
    if who == owner:
        return ALL_FOREVER
    return self._permissions[self._life_key(key)][who] & ALL_FOREVER


@internal
@pure
def _check(stream: Stream):
    assert stream.partitions > 0 and stream.partitions <= PARTITIONS_MAX, "partitions are 1 to 100"
    if stream.degree != 0:
        assert stream.degree >= DEGREE_MIN and stream.degree <= DEGREE_MAX, "a degree is 3 to 64"


@internal
@pure
def _key(owner: address, path: String[PATH_BYTES_MAX]) -> bytes32:
    return keccak256(abi_encode(owner, path))


@internal
@view
def _life_key(key: bytes32) -> bytes32:
    return keccak256(abi_encode(key, self._life[key]))
