"""A verifier as a program, for `underpaint certify --as process`: a JSON line in, a JSON line out."""

import json
import sys


def drawn(weights, uniform):
    left, last = uniform * sum(weights), 0
    for token, weight in enumerate(weights):
        if weight > 0:
            last = token
            if left < weight:
                return token
            left -= weight
    return last


for line in sys.stdin:
    asked = json.loads(line)
    path, node = [], 0
    while True:
        left = list(asked["target_probs"][node])
        kept = None
        for child in (child for child, above in enumerate(asked["parents"]) if above == node):
            token = asked["tokens"][child]
            if asked["uniforms"][child] * sum(left) < left[token]:
                kept = child
                break
            left[token] = 0.0
        if kept is None:
            break
        path.append(kept)
        node = kept
    print(json.dumps({"id": asked["id"], "path": path, "token": drawn(left, asked["uniforms"][-1])}), flush=True)
