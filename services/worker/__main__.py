"""``python -m services.worker``: one worker; under torchrun, over several processes."""

from __future__ import annotations

from services.runtime.huge_pages import restart_with_huge_pages


def main() -> None:
    """Serve, or hold a share of the model of the process that serves."""
    from services.runtime.config import load_config
    from services.worker.config import WorkerConfig

    config = load_config(WorkerConfig)  # a wrong flag is refused before torch is imported

    from services.runtime.service import run_service
    from services.worker.engine.model.tensor_parallel import is_follower
    from services.worker.loading import follow
    from services.worker.servicer import build

    if is_follower():
        follow(config)
    else:
        run_service(config, build)


if __name__ == "__main__":
    restart_with_huge_pages()  # before torch is loaded, which takes seconds
    main()
