"""Pieces of streamed answers on their way to the streams topic, beside the outcomes and never before them.

May import what lies below dispatch. The event loop; a thread of the client's own sends, another looks at the topic.
"""
