"""What a job says of itself to the outside: log lines, metrics and spans.

Each follows from the same two things by plain functions: from what happens in a driver
(:mod:`absflow.telemetry.happenings`), and from the facts of a checkpoint. Only
:mod:`absflow.telemetry.otel` and :mod:`absflow.telemetry.prometheus` know who listens.
"""
