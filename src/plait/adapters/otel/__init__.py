"""A run for OpenTelemetry: its journal becomes spans, metrics and logs, which OTLP/HTTP carries.

`spans` is the one function from events to spans, used while a run goes on and for runs of the past.
`names` holds every attribute name, `wire` the encoding, `sender` the requests, `exporter` the
thread that reads the journal.  Nothing of this is imported unless telemetry is configured.
"""
