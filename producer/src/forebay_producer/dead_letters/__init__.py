"""Dead letters: read, grouped, selected, shown, exported; what the audit topic says has become of each.

Reads Kafka, writes nothing; writing is done in runs. May import client, cluster and errors. The command's thread.
"""
