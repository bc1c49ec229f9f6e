"""The drawing demo: free and paying users of an image service, and how long each kind waits.

Starts a stack of its own. May import demo's stage and views; its users are clients of forebay_producer.
"""
