"""Starts a thread when it is imported, as some libraries do."""

import threading
import time

threading.Thread(target=time.sleep, args=(3600.0,), daemon=True).start()
