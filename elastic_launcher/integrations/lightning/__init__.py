"""Lightning modules as elastic jobs: strategies for Lightning's Trainer and for Fabric.

    import elastic_launcher.torch as elastic
    from elastic_launcher.integrations.lightning import ElasticStrategy

    job = elastic.init(global_batch_size=256, max_batch_per_gpu=64)
    trainer = lightning.Trainer(strategy=ElasticStrategy(job), max_epochs=10)
    trainer.fit(module, DataLoader(dataset, batch_size=256, shuffle=True))

To Lightning each process is alone, and one batch is one optimizer step of the job: it has the global batch, whatever
the number of ranks.
"""

from elastic_launcher.integrations.lightning.fabric import ElasticFabricStrategy
from elastic_launcher.integrations.lightning.strategy import ElasticStrategy

__all__ = ["ElasticFabricStrategy", "ElasticStrategy"]
