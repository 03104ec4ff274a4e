"""Rules and policies for many images at once (lockstep). The spec of a rule or policy names its batched form."""
