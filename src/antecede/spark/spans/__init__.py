"""Spans of OpenTelemetry as rows that name their causes."""
