"""The simulated engine: continuous batching as a step function, OpenAI's API on top, injected faults. A server in its
own process; physics, protocol and faults are pure. May import no other room."""
