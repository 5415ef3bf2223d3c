"""``python -m services.worker``: one worker; under torchrun, over several processes."""

from __future__ import annotations

from services.runtime.huge_pages import restart_with_huge_pages

if __name__ == "__main__":
    restart_with_huge_pages()  # before torch is loaded: that takes seconds
    from services.worker.main import main

    main()
