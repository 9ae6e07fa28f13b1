"""How bytes get from one node to another: in memory, over TCP, through a NATS server, each with TLS."""
