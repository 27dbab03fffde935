"""Profiles of applications for simulations."""

from __future__ import annotations

from pathlib import Path


def write_profile(folder: Path, epoch: int = 10) -> None:
    """Writes the profile of an application of two epochs of some steps, on up to 8 GPUs of 4 machines."""
    folder.mkdir(parents=True)
    (folder / "placements.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n1,2,1.0,0.0\n1,8,2.0,0.0\n12,2,1.5,0.5\n21,2,2.5,0.5\n"
    )
    (folder / "scalability.csv").write_text("num_nodes,num_replicas,local_bsz,step_time,sync_time\n4,8,2,3.0,0.5\n")
    for batch in (4, 16):
        (folder / f"validation-{batch}.csv").write_text(
            "progress,iteration,metric,grad_sqr,grad_var\n"
            f"{epoch},{epoch},0.5,1.0,2.0\n{2 * epoch},{2 * epoch},0.6,1.0,2.0\n"
        )
