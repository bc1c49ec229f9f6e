"""The worker. Names that a user's handler needs are here: see docs/run-workers.md."""

from forebay_worker.request.handler import Handler, HandlerAnswer, HandlerRequest, NotRetryableError

__all__ = ["Handler", "HandlerAnswer", "HandlerRequest", "NotRetryableError"]
