"""Rules and policies over many images at once (lockstep); each form stands in the spec of its rule or policy."""
