"""What a job did: its numbers, a summary, and a timeline, all from its events."""

from elastic_launcher.report.metrics import Metrics, measure
from elastic_launcher.report.write import write_report, write_timeline

__all__ = ["Metrics", "measure", "write_report", "write_timeline"]
