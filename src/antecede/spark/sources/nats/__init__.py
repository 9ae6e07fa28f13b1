"""Streams from and to NATS JetStream."""
