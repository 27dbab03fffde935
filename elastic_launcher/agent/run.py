"""Starts torchrun with our rendezvous registered: torch 2.5 finds no handlers in installed packages."""

from __future__ import annotations

from elastic_launcher.host.imports import uncollected

with uncollected():
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.run import main

    from elastic_launcher.agent.rendezvous import BACKEND, handler

if __name__ == "__main__":
    rendezvous_handler_registry.register(BACKEND, handler())  # the same again where the entry point was found
    main()
