"""``python -m services.picker``: one endpoint picker."""

from __future__ import annotations

import sys

from headway.errors import HeadwayError
from services.picker.config import PickerConfig
from services.runtime.config import load_config


def main() -> int:
    """Run until a signal; return the exit status."""
    config = load_config(PickerConfig)  # a wrong flag is refused before the rest is imported

    import uvloop

    from services.runtime.essential import Ending
    from services.runtime.log_lines import configure_logs
    from services.runtime.logs import get_logger

    configure_logs(config.log_level, config.log_format, "picker", config.service_id)
    try:
        from services.picker.service import serve
    except ImportError as error:
        get_logger().error("cannot_start", error=f"{error}: pip install 'headway[picker]'")
        return 2
    ending = Ending()
    try:
        uvloop.run(serve(config, ending))
    except HeadwayError as error:
        get_logger().error("cannot_start", error=error.message)
        return 2
    return 1 if ending.failure else 0


if __name__ == "__main__":
    sys.exit(main())
