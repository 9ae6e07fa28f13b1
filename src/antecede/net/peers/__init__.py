"""The connections of a node with its peers: the handshake, the session, who dials, who is let in."""
