"""The local cluster of `headway up`: supervisor, private store, scaler, standby workers."""
