"""Reports on a job from its events: numbers, a summary, and a timeline."""

from elastic_launcher.report.metrics import Metrics, measure
from elastic_launcher.report.write import write_report, write_timeline

__all__ = ["Metrics", "measure", "write_report", "write_timeline"]
