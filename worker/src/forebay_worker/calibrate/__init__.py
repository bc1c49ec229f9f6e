"""`forebay-worker calibrate`: measures a backend's capacity by steps of a closed loop; the report and its settings
file.

target and prepare send requests; the other modules are pure. May import execution, pacing and signals. The main thread.
"""
