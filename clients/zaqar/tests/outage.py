"""Pushes and works while something goes wrong: outage.py MESSAGES HOST:PORT...

Every request without an answer, or with 500 or 503, is repeated.  At the end, each
message that was pushed has been received, or is still in the queue.
"""

import http.client
import json
import sys
import threading
import time
import uuid

QUEUE = '/v2/queues/outage'


class Client:

    def __init__(self, address):
        self.address = address
        self.headers = {'Client-ID': str(uuid.uuid4()), 'X-Project-ID': 'outage',
                        'Content-Type': 'application/json'}

    def request(self, method, path, body=None):
        while True:
            try:
                connection = http.client.HTTPConnection(self.address, timeout=60)
                connection.request(method, path, body and json.dumps(body), self.headers)
                answer = connection.getresponse()
                text = answer.read()
                if answer.status not in (500, 503):
                    return answer.status, json.loads(text) if text else {}
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
            failures.append(path)
            time.sleep(0.05)


def push(client, numbers):
    for number in numbers:
        status, _ = client.request('POST', QUEUE + '/messages',
                                   {'messages': [{'ttl': 3600, 'body': number}]})
        assert status == 201, status


def work(client):
    while True:
        done = not any(pusher.is_alive() for pusher in pushers)
        status, document = client.request('POST', QUEUE + '/claims?limit=5',
                                          {'ttl': 60, 'grace': 60})
        for message in document.get('messages', []):
            status, _ = client.request('DELETE', message['href'])
            if status == 204:
                received.append(message['body'])
        if status == 204 and not document and done:
            return
        if not document:
            time.sleep(0.02)


count, addresses = int(sys.argv[1]), sys.argv[2:]
failures, received = [], []
Client(addresses[0]).request('PUT', QUEUE)
pushers = [threading.Thread(target=push, args=(Client(address), range(n, count, 2)))
           for n, address in zip((0, 1), addresses * 2)]
workers = [threading.Thread(target=work, args=(Client(address),))
           for n, address in zip((0, 1), addresses * 2)]
for thread in pushers + workers:
    thread.start()
for thread in pushers + workers:
    thread.join()

left, path = [], QUEUE + '/messages?echo=true&include_claimed=true&limit=20'
while True:
    _, document = Client(addresses[0]).request('GET', path)
    if not document['messages']:
        break
    left += [message['body'] for message in document['messages']]
    path = document['links'][0]['href']
lost = set(range(count)) - set(received) - set(left)
print('%d pushed, %d received, %d left, %d requests repeated, lost: %s'
      % (count, len(set(received)), len(set(left) - set(received)), len(failures),
         sorted(lost) or 'none'))
sys.exit(bool(lost))
