"""How long will a request's output be? One file per answer."""
