"""The life of a request as data: what happened when, and the parts that its time consists of."""
