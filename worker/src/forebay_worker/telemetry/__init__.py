"""What is counted, and the spans that OpenTelemetry makes of each request.

May import request. The event loop.
"""
