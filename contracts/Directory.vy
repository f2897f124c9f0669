# pragma version ==0.4.3
# pragma evm-version cancun
"""
@title Directory of nodes
@notice Where nodes are reached that anybody may want to find. One is deployed for trackers, one for
        storage nodes. The admin lists and removes nodes; a listed node changes its own addresses.
"""

NODES_MAX: constant(uint256) = 1024
PAGE: constant(uint256) = 16
ADDRESSES_MAX: constant(uint256) = 4
ADDRESS_BYTES_MAX: constant(uint256) = 256

struct Entry:
    node: address
    addresses: DynArray[String[ADDRESS_BYTES_MAX], ADDRESSES_MAX]

event AdminChanged:
    admin: indexed(address)

event NodePut:
    node: indexed(address)
    addresses: DynArray[String[ADDRESS_BYTES_MAX], ADDRESSES_MAX]

event NodeRemoved:
    node: indexed(address)

admin: public(address)
_nodes: DynArray[address, NODES_MAX]
_place: HashMap[address, uint256]  # in _nodes, from 1 on; 0: not listed
_addresses: HashMap[address, DynArray[String[ADDRESS_BYTES_MAX], ADDRESSES_MAX]]


@deploy
def __init__():
    self.admin = msg.sender
    log AdminChanged(admin=msg.sender)


@external
def hand_over(admin: address):
    """
    @notice Make another address the admin.
    """
    assert msg.sender == self.admin, "only the admin hands over"
    assert admin != empty(address), "the admin must be somebody"
    self.admin = admin
    log AdminChanged(admin=admin)


@external
def put(node: address, addresses: DynArray[String[ADDRESS_BYTES_MAX], ADDRESSES_MAX]):
    """
    @notice List a node, or change where a listed one is reached.
    """
    assert len(addresses) > 0, "a node has at least one address"
    if self._place[node] == 0:
        assert msg.sender == self.admin, "only the admin lists nodes"
        assert node != empty(address), "a node must be somebody"
        self._nodes.append(node)
        self._place[node] = len(self._nodes)
    else:
        assert msg.sender in [self.admin, node], "only the admin and the node itself change its addresses"
    self._addresses[node] = addresses
    log NodePut(node=node, addresses=addresses)


@external
def remove(node: address):
    """
    @notice Take a node off the list.
    """
    assert msg.sender == self.admin, "only the admin removes nodes"
    place: uint256 = self._place[node]
    assert place > 0, "no such node is listed"
    # The last one takes its place: the list has no holes, and no order that anybody may rely on.
    last: address = self._nodes.pop()
    if last != node:
        self._nodes[place - 1] = last
        self._place[last] = place
    self._place[node] = 0
    self._addresses[node] = []
    log NodeRemoved(node=node)


@external
@view
def page(start: uint256) -> DynArray[Entry, PAGE]:
    """
    @notice Up to 16 entries from a place on, counted from 0; fewer at the end.
    """
    found: DynArray[Entry, PAGE] = []
    for place: uint256 in range(PAGE):
        if start + place >= len(self._nodes):
            break
        node: address = self._nodes[start + place]
        found.append(Entry(node=node, addresses=self._addresses[node]))
    return found
