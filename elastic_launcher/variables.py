"""The environment variables by which a job's processes know of each other; no other module spells their names.

`agent.rank_exec`, which may import nothing, is the one exception.
"""

from __future__ import annotations

PREFIX = "ELASTIC_"
"""What all of them begin with; a user sets none of these for a job's nodes."""

# from a pipeline's step to its launcher

GOES_ON = "ELASTIC_GOES_ON"
"""How the job goes on after it was saved: whoever reads the step's log has typed no command."""
DATA_SOURCE = "ELASTIC_DATA_SOURCE"
"""The source of the data set, which stays the same while its path may change."""
STEP_OUTPUTS = "ELASTIC_STEP_OUTPUTS"
"""The folder of the step's output parameters, which are written only where it is set."""
POD_LABEL = "ELASTIC_POD_LABEL"
"""The value of the pod's label ``elastic``."""
POD_NODES = "ELASTIC_POD_NODES"
"""The value of the pod's annotation with the number of nodes."""

# from the launcher to the agent of each node, and on to its ranks

CONTROL = "ELASTIC_CONTROL"
"""Path of the coordinator's ``control.json``; for the agent of a pod, the coordinator's URL."""
WORK_DIR = "ELASTIC_WORK_DIR"
"""The job's folder. The agent of a pod gets none, and makes its own."""
NODE = "ELASTIC_NODE"
"""The node's number."""
FIRST_MEMBER = "ELASTIC_FIRST_MEMBER"
"""The number of the node's first member; the other ranks' follow."""
SLOT = "ELASTIC_SLOT"
"""Which part of this machine's GPUs the node has, from 0; a launcher that takes over reads it."""
RESIZE = "ELASTIC_RESIZE"
"""``in-process`` or ``respawn``."""
ORPHAN_TIMEOUT = "ELASTIC_ORPHAN_TIMEOUT"
"""Seconds after which the node ends if it can't reach the coordinator."""
POD = "ELASTIC_POD"
"""The name of the node's pod."""
KEY = "ELASTIC_KEY"
"""The job's key, in hexadecimal digits, where it is in no file. The agent takes it out of the environment."""
KEY_FILE = "ELASTIC_KEY_FILE"
"""The file that has the key."""
FAULT = "ELASTIC_FAULT"
"""What a test wants to go wrong in ranks; see `torch.fault_injection`."""

# from the agent to its ranks

AGENT_PID = "ELASTIC_AGENT_PID"
"""The agent's process id: a rank ends if its torchrun is not the agent's child any more."""
ROUND = "ELASTIC_ROUND"
"""With ``respawn``: how often the workers were started, this time included."""
MEMBER = "ELASTIC_MEMBER"
"""The rank's own member number, set by `agent.rank_exec`."""

# options of the job that ranks read

GLOBAL_BATCH_SIZE = "ELASTIC_GLOBAL_BATCH_SIZE"
MAX_BATCH_PER_GPU = "ELASTIC_MAX_BATCH_PER_GPU"
AUTOSCALE_BATCH_SIZE = "ELASTIC_AUTOSCALE_BATCH_SIZE"
CHECKPOINT_EVERY = "ELASTIC_CHECKPOINT_EVERY"
KEEP_CHECKPOINTS = "ELASTIC_KEEP_CHECKPOINTS"
CHECKPOINT_DIR = "ELASTIC_CHECKPOINT_DIR"
DATA = "ELASTIC_DATA"
OUTPUT = "ELASTIC_OUTPUT"
