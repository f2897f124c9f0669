"""A node's place in a tree, effect by effect."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from shoal.base.errors import InvariantViolated
from shoal.base.ids import Contact
from shoal.kernel.effects import CancelTimer, CloseLink, Effect, OpenLink, Send, SetTimer
from shoal.protocols.dht.commands import Find
from shoal.protocols.dht.key_space import id_of_node
from shoal.protocols.topics.config import CONTACTS_MAX, PATH_MAX, TopicsConfig
from shoal.protocols.topics.messages import (
    Digest,
    JoinTopic,
    LeaveTopic,
    NewTopic,
    Path,
    Redirect,
    Rpc,
    say,
    stamp,
)
from shoal.protocols.topics.tree import JOIN, PURPOSE, Here, Links, Tree
from shoal.sim.simulation import START_NS
from tests.support.topic_bench import contact_of, id_of, topic_by

AUTHOR = 0
TOPIC = topic_by(AUTHOR)
ID = id_of(TOPIC)
CONFIG = TopicsConfig(children_max=2)
NOW = START_NS
STAMP = stamp(NOW)
PLACE = id_of_node(contact_of(AUTHOR).node)
# By how far they are from the author, nearest first.
NEAR = sorted(range(1, 12), key=lambda n: id_of_node(contact_of(n).node) ^ PLACE)
ME = NEAR[5]
NEARER, FARTHER = [contact_of(n) for n in NEAR[:5]], [contact_of(n) for n in NEAR[6:]]
ROOT, P, Q = contact_of(AUTHOR), NEARER[0], NEARER[1]
TIMER = SetTimer((JOIN, ID), CONFIG.join_timeout_ns)
STOP = CancelTimer((JOIN, ID))
GREETING = Digest(ID, 0, (), STAMP)


def tree_of(number: int = ME, config: TopicsConfig = CONFIG) -> Tree:
    me = contact_of(number)
    here = Here(me.node, me.addresses)
    return Tree(ID, TOPIC, here, Links(), lambda now: GREETING, Random(1), config)


def search(local: bool, number: int = ME) -> Send:
    return Send(Find(PLACE, local, (JOIN, ID, local)), (contact_of(number).node,))


def join_at(contact: Contact, number: int = ME) -> Send:
    join = JoinTopic(ID, STAMP, contact_of(number).addresses)
    return say(contact.node, NewTopic(TOPIC, STAMP), join)


def dial(contact: Contact) -> OpenLink:
    return OpenLink(contact, PURPOSE)


def hang_up(contact: Contact) -> CloseLink:
    return CloseLink(contact.node, PURPOSE)


def leave(contact: Contact) -> Send:
    return say(contact.node, LeaveTopic(ID, STAMP))


def path(*contacts: Contact) -> Path:
    return Path(ID, contacts, STAMP)


def opened(tree: Tree, contact: Contact) -> list[Effect]:
    """The link to somebody is up."""
    effects: list[Effect] = []
    for _ in tree._links.opened(contact.node):
        effects += tree.link_opened(contact.node, NOW)
    return effects


def below(tree: Tree, *above: Contact) -> None:
    """Enter, and be the child of the last of these."""
    tree.enter(NOW)
    tree.found(above[-1:], True, NOW)
    opened(tree, above[-1])
    tree.path_told(above[-1].node, above, NOW)
    assert tree.parent == above[-1].node


def with_child(tree: Tree, contact: Contact) -> list[Effect]:
    return tree.joined(contact.node, contact.addresses, NOW)


# Joining


def test_a_join_goes_to_the_nearest_known_peer_and_its_answer_is_a_path() -> None:
    tree = tree_of()
    assert tree.enter(NOW) == [search(True)]
    assert tree.enter(NOW) == []
    assert tree.found((FARTHER[0], P, Q), True, NOW) == [dial(P), TIMER]
    assert (tree.parent, tree.asked) == (None, P.node)
    assert opened(tree, P) == [join_at(P)]
    assert tree.path_told(P.node, (ROOT, P), NOW) == [STOP, say(P.node, GREETING)]
    assert (tree.parent, tree.path, tree.asked) == (P.node, (ROOT, P), None)
    assert tree.path_told(P.node, (ROOT, P), NOW) == []
    tree.check_invariants()


def test_a_link_that_is_up_is_used_at_once() -> None:
    tree = tree_of()
    tree._links.hold(P, "another topic")
    tree._links.opened(P.node)
    tree.enter(NOW)
    assert tree.found((P,), True, NOW) == [TIMER, join_at(P)]


def test_the_author_is_the_root_and_looks_for_nobody() -> None:
    tree = tree_of(AUTHOR)
    assert tree.enter(NOW) == []
    assert (tree.is_author, tree.is_root, tree.searching) == (True, True, False)
    me = contact_of(AUTHOR)
    assert tree.joined(P.node, P.addresses, NOW) == [
        dial(P),
        say(P.node, path(me), GREETING),
    ]
    assert tree.neighbours == (P.node,)
    again = Contact(P.node, ("ws://elsewhere",))
    assert told(tree.joined(P.node, again.addresses, NOW)) == [path(me), GREETING]
    assert tree.children == {P.node: again}


def told(effects: list[Effect]) -> list[Any]:
    """The messages, however they are put together."""
    sent = [one.message for one in effects if isinstance(one, Send)]
    return [each for rpc in sent if isinstance(rpc, Rpc) for each in rpc.messages]


def test_who_knows_nobody_nearer_stands_in_for_the_author() -> None:
    tree = tree_of()
    tree.enter(NOW)
    assert tree.found(FARTHER, True, NOW) == [search(False)]
    (timer,) = tree.found(FARTHER, False, NOW)
    assert isinstance(timer, SetTimer)
    assert timer.key == TIMER.key
    assert CONFIG.search_ns / 2 <= timer.delay_ns <= 2 * CONFIG.search_ns
    assert (tree.is_root, tree.is_author) == (True, False)
    assert (tree.searching, tree.asked) == (False, None)
    # It looks again from time to time, and joins whoever is nearer.
    assert tree.beat(NOW) == []
    assert tree.timed_out(NOW) == [search(False)]
    assert tree.timed_out(NOW) == []
    assert tree.found((ROOT,), False, NOW) == [dial(ROOT), TIMER]


def test_who_was_lost_is_asked_again_as_soon_as_it_may_be() -> None:
    tree = tree_of()
    below(tree, ROOT)
    tree.left(ROOT.node, NOW)
    assert tree.found((ROOT,), True, NOW) == [search(False)]
    assert tree.found((ROOT,), False, NOW) == [SetTimer(TIMER.key, CONFIG.avoid_lost_ns)]
    assert tree.timed_out(NOW + CONFIG.avoid_lost_ns) == [search(False)]
    later = tree.found((ROOT,), False, NOW + CONFIG.avoid_lost_ns)
    assert dial(ROOT) in later


def test_whoever_has_children_joins_too() -> None:
    tree = tree_of()
    child = FARTHER[0]
    assert with_child(tree, child) == [dial(child), say(child.node, path(me()), GREETING)]
    assert tree.enter(NOW) == [search(True)]
    tree.found((P,), True, NOW)
    opened(tree, P)
    assert tree.path_told(P.node, (ROOT, P), NOW) == [
        STOP,
        say(P.node, GREETING),
        Send(Rpc((path(ROOT, P, me()),)), (child.node,)),
    ]


def me() -> Contact:
    return contact_of(ME)


# Full nodes


def test_a_full_node_names_its_children() -> None:
    tree = tree_of(AUTHOR)
    tree.enter(NOW)
    for contact in (P, Contact(Q.node)):
        with_child(tree, contact)
    (sent,) = with_child(tree, FARTHER[0])
    # Of its children, one cannot be dialled.
    assert sent == say(FARTHER[0].node, Redirect(ID, (P,), STAMP))
    assert FARTHER[0].node not in tree.children


def test_a_redirect_names_a_few_of_many() -> None:
    tree = tree_of(AUTHOR, TopicsConfig(children_max=CONTACTS_MAX + 1))
    tree.enter(NOW)
    for number in range(20, 21 + CONTACTS_MAX):
        with_child(tree, contact_of(number))
    (sent,) = told(with_child(tree, P))
    assert len(set(sent.contacts)) == CONTACTS_MAX


def test_who_is_redirected_asks_those_in_their_order_then_the_dht() -> None:
    tree = tree_of()
    tree.enter(NOW)
    tree.found((P,), True, NOW)
    assert tree.redirected(Q.node, (Q,), NOW) is None, "it was not asked"
    far = FARTHER[0]
    assert tree.redirected(P.node, (me(), far, Q), NOW) == [STOP, hang_up(P), dial(far), TIMER]
    assert tree.redirected(far.node, (P,), NOW) == [STOP, hang_up(far), dial(Q), TIMER]
    assert tree.redirected(Q.node, (), NOW) == [STOP, hang_up(Q), search(True)]
    # All of them are avoided for a while.
    assert tree.found((P, Q), True, NOW) == [search(False)]
    tree.found((), False, NOW)
    later = NOW + CONFIG.avoid_ns
    assert tree.timed_out(later) == [search(False)]
    assert tree.found((P, Q), False, later) == [dial(P), TIMER]


# Loops


@pytest.mark.parametrize(
    "wrong",
    [
        (ROOT, contact_of(ME), P),
        (ROOT, Q),
        (),
        (*[contact_of(n) for n in range(100, 99 + PATH_MAX)], P),
    ],
    ids=["loop", "not its own", "empty", "too deep"],
)
@pytest.mark.parametrize("as_child", [False, True])
def test_a_path_that_cannot_be_is_left(wrong: tuple[Contact, ...], as_child: bool) -> None:
    tree = tree_of()
    child = FARTHER[0]
    with_child(tree, child)
    if as_child:
        below(tree, ROOT, P)
        ends: list[Effect] = [hang_up(P), Send(Rpc((path(me()),)), (child.node,))]
    else:
        tree.enter(NOW)
        tree.found((P,), True, NOW)
        ends = [STOP, hang_up(P)]
    assert tree.path_told(P.node, wrong, NOW) == [leave(P), *ends, search(True)]
    assert (tree.parent, tree.asked, tree.path) == (None, None, ())
    assert tree.found((P,), True, NOW) == [search(False)], "it is avoided for a while"
    tree.check_invariants()


def test_a_path_of_a_stranger_is_nobodys() -> None:
    tree = tree_of()
    below(tree, ROOT, P)
    assert tree.path_told(Q.node, (ROOT, Q), NOW) is None
    assert tree.parent == P.node


def test_who_is_above_is_not_taken_in_as_a_child() -> None:
    tree = tree_of()
    below(tree, ROOT, P)
    for contact in (ROOT, P):
        assert with_child(tree, contact) == [say(contact.node, Redirect(ID, (), STAMP))]
    assert tree.joined(me().node, (), NOW) == []
    assert tree.children == {}


def test_of_two_that_ask_each_other_the_nearer_one_is_the_parent() -> None:
    near, far = tree_of(), tree_of()
    for tree, other in ((near, FARTHER[0]), (far, Q)):
        tree.enter(NOW)
        # Whoever redirects need not name somebody nearer.
        tree.found((P,), True, NOW)
        tree.redirected(P.node, (other,), NOW)
        assert tree.asked == other.node
    assert with_child(near, FARTHER[0]) == [
        STOP,
        hang_up(FARTHER[0]),
        dial(FARTHER[0]),
        say(FARTHER[0].node, path(me()), GREETING),
        search(True),
    ]
    assert with_child(far, Q) == [say(Q.node, Redirect(ID, (), STAMP))]
    assert (far.asked, far.children) == (Q.node, {})


# Losing neighbours


def test_who_loses_its_parent_asks_its_grandparents() -> None:
    tree = tree_of()
    child = FARTHER[0]
    with_child(tree, child)
    below(tree, ROOT, Q, P)
    assert tree.left(P.node, NOW) == [
        hang_up(P),
        Send(Rpc((path(me()),)), (child.node,)),
        dial(Q),
        TIMER,
    ]
    assert tree.left(Q.node, NOW) == [STOP, hang_up(Q), dial(ROOT), TIMER]
    assert tree.timed_out(NOW) == [STOP, hang_up(ROOT), search(True)]
    assert tree.timed_out(NOW) == []


def test_a_child_that_leaves_is_not_missed() -> None:
    tree = tree_of()
    below(tree, ROOT, P)
    with_child(tree, FARTHER[0])
    assert tree.left(FARTHER[0].node, NOW) == [hang_up(FARTHER[0])]
    assert tree.left(FARTHER[0].node, NOW) == []
    assert tree.neighbours == (P.node,)


def test_silent_neighbours_are_parted_with() -> None:
    tree = tree_of()
    below(tree, ROOT, P)
    quiet, lively = FARTHER[0], FARTHER[1]
    with_child(tree, quiet)
    with_child(tree, lively)
    now = NOW + CONFIG.silence_ns
    tree.heard(lively.node, now)
    assert tree.beat(now)[0] == say(P.node, GREETING)
    effects = tree.beat(now + 1)
    assert [effect for effect in effects if isinstance(effect, CloseLink | OpenLink)] == [
        hang_up(P),
        dial(ROOT),
        hang_up(quiet),
    ]
    assert tree.neighbours == (lively.node,)


def test_a_beat_greets_the_parent_and_tells_children_their_path() -> None:
    tree = tree_of()
    below(tree, ROOT, P)
    with_child(tree, FARTHER[0])
    assert tree.beat(NOW) == [
        say(P.node, GREETING),
        Send(Rpc((path(ROOT, P, me()), GREETING)), (FARTHER[0].node,)),
    ]


def test_leaving_says_so_to_all_and_ends_a_search() -> None:
    tree = tree_of()
    below(tree, ROOT, P)
    with_child(tree, FARTHER[0])
    assert tree.leave(NOW) == [leave(P), hang_up(P), leave(FARTHER[0]), hang_up(FARTHER[0])]
    assert (tree.entered, tree.neighbours, tree.path) == (False, (), ())
    tree.enter(NOW)
    tree.found((P,), True, NOW)
    assert tree.leave(NOW) == [STOP, hang_up(P)]
    assert tree.asked is None


def test_a_search_that_ends_after_the_node_has_left_leads_nowhere() -> None:
    tree = tree_of()
    tree.enter(NOW)
    tree.leave(NOW)
    assert tree.found((P,), True, NOW) == []
    assert (tree.asked, tree.searching) == (None, False)
    assert tree.enter(NOW) == [search(True)]


def test_a_link_that_is_needed_elsewhere_stays() -> None:
    tree = tree_of()
    below(tree, ROOT, P)
    tree._links.hold(P, "another topic")
    assert tree.leave(NOW) == [leave(P)]


def test_a_wrong_place_is_found_out() -> None:
    tree = tree_of()
    tree.parent = me().node
    with pytest.raises(InvariantViolated, match="above or below itself"):
        tree.check_invariants()
    tree.parent = P.node
    tree.children = {P.node: P}
    with pytest.raises(InvariantViolated, match="its parent as a child"):
        tree.check_invariants()
    tree.parent, tree.children = None, {one.node: one for one in NEARER}
    with pytest.raises(InvariantViolated, match="has 5 children"):
        tree.check_invariants()
