"""What a training script imports: ``import elastic_launcher.torch as elastic``, then ``elastic.init(256, 64)``."""

from elastic_launcher.torch.data.lanes import lanes
from elastic_launcher.torch.init import init
from elastic_launcher.torch.job import Job
from elastic_launcher.torch.shard.node import init_node_group

__all__ = ["Job", "init", "init_node_group", "lanes"]
