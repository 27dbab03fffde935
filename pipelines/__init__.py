"""Ready pipelines and workflows that use the elastic training step, on real data."""
