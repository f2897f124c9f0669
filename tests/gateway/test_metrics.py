"""What /metrics says, and that it stays bounded."""

from __future__ import annotations

from shoal.base.ids import show_node_id
from shoal.gateway.endpoints.metrics import NODES_SHOWN_MAX, _behind
from shoal.identity import PrivateKey, SeededEntropy
from shoal.protocols.streams.history.anti_entropy import Progress


def test_storage_nodes_beyond_a_bound_are_one_line() -> None:
    """Owners of streams name them."""
    nodes = [
        PrivateKey.generate(SeededEntropy(str(n))).address for n in range(NODES_SHOWN_MAX + 40)
    ]
    progress = [
        Progress(node, linked=True, catching_up=False, streams=1, uncompared=n % 2, rows_behind=n)
        for n, node in enumerate(nodes)
    ]
    rows, streams = _behind(progress)
    for metric, total in ((rows, sum(range(len(nodes)))), (streams, len(nodes) // 2)):
        values = {sample.labels["node"]: sample.value for sample in metric.samples}
        assert len(values) == NODES_SHOWN_MAX + 1
        assert sum(values.values()) == total
        assert show_node_id(nodes[-1]) in values, "the one that is furthest behind"
    rows, _ = _behind(progress[:NODES_SHOWN_MAX])
    assert "others" not in {sample.labels["node"] for sample in rows.samples}
