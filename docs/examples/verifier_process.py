"""A verifier as a program, for `underpaint certify --as process`: a JSON line in, a JSON line out."""

import json
import sys


def drawn(weights, uniform):
    remainder, last = uniform * sum(weights), 0
    for token, weight in enumerate(weights):
        if weight > 0:
            last = token
            if remainder < weight:
                return token
            remainder -= weight
    return last


for line in sys.stdin:
    request = json.loads(line)
    path, node = [], 0
    while True:
        weights = list(request["target_probs"][node])
        accepted = None
        for child in (child for child, above in enumerate(request["parents"]) if above == node):
            token = request["tokens"][child]
            if request["uniforms"][child] * sum(weights) < weights[token]:
                accepted = child
                break
            weights[token] = 0.0
        if accepted is None:
            break
        path.append(accepted)
        node = accepted
    print(json.dumps({"id": request["id"], "path": path, "token": drawn(weights, request["uniforms"][-1])}), flush=True)
