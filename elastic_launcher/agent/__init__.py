"""One node: stock torchrun under a small process of ours that takes the signals and speaks with the coordinator."""
