"""The waiting requests, a lane a tier: by priority, fair among tenants, in the lane's order; which tier is next.

Pure. May import request. The event loop.
"""
