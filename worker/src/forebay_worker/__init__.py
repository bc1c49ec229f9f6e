"""The worker. What a handler of the user's needs is here: see docs/run-workers.md."""

from forebay_worker.request.handler import Handler, HandlerAnswer, HandlerRequest, NotRetryableError

__all__ = ["Handler", "HandlerAnswer", "HandlerRequest", "NotRetryableError"]
