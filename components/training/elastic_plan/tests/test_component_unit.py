"""The component called as a function, on a document of hints."""

from pathlib import Path

from ..component import elastic_plan


def test_it_says_nodes_gpus_and_why(tmp_path: Path) -> None:
    """As many nodes as the hints have GPUs for."""
    hints = tmp_path / "hints.json"
    hints.write_text('{"apiVersion": "elastic-hints/v1", "defaults": {"gpus": {"allowed": 5}}}')
    nodes, gpus, reason = elastic_plan.python_func(hints=str(hints), max_nodes=8, nproc_per_node=2)
    assert (nodes, gpus) == (2, "4")
    assert "5 GPUs allowed" in reason
