"""What is counted, and the spans that OpenTelemetry makes of each request.

Imports request. The event loop.
"""
