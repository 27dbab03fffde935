"""Models that are sharded within a node (FSDP2): each node has the whole model once, in parts on its ranks."""
