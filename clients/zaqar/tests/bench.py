"""Requests per second of zaqar-servers: bench.py ROUNDS REQUESTS NAME=HOST:PORT...

In each round, each server in turn gets so many requests of each kind, one after the
other: pushes of one message, claims of one message, and deletes under the claim.
Prints medians with the least and the greatest, and the ratio to the first server.
"""

import http.client
import json
import statistics
import sys
import time
import uuid

rounds, requests = int(sys.argv[1]), int(sys.argv[2])
servers = dict(argument.split('=') for argument in sys.argv[3:])
headers = {'Client-ID': str(uuid.uuid4()), 'X-Project-ID': str(uuid.uuid4()),
           'Content-Type': 'application/json'}
post = {'messages': [{'ttl': 3600, 'body': {'to': 'ann@example.org', 'text': 'x' * 100}}]}
claim = {'ttl': 300, 'grace': 60}


def request(address, method, path, body=None):
    # zaqar-server closes the connection after each answer
    connection = http.client.HTTPConnection(address)
    connection.request(method, path, body and json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status in (201, 204), (answer.status, text)
    return json.loads(text) if text else None


def timed(kind, name, calls):
    start = time.monotonic()
    results = [request(servers[name], *call) for call in calls]
    rates.setdefault((kind, name), []).append(len(calls) / (time.monotonic() - start))
    return results


rates = {}
for number in range(rounds):
    for name in servers:
        queue = '/v2/queues/bench%d' % number
        request(servers[name], 'PUT', queue)
        timed('push', name, [('POST', queue + '/messages', post)] * requests)
        claims = timed('claim', name, [('POST', queue + '/claims?limit=1', claim)] * requests)
        timed('delete', name, [('DELETE', answer['messages'][0]['href']) for answer in claims])
        request(servers[name], 'DELETE', queue)

first = next(iter(servers))
for kind in 'push', 'claim', 'delete':
    base = statistics.median(rates[kind, first])
    for name in servers:
        values = rates[kind, name]
        print('%-7s %-12s %6.0f/s (%.0f to %.0f), ratio %.2f'
              % (kind, name, statistics.median(values), min(values), max(values),
                 statistics.median(values) / base))
