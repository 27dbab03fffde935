"""Everything that travels: to joiners, to peers that recover, and into checkpoints."""
