"""Uses a zaqar-server as its clients do: client.py HOST:PORT"""

import http.client
import json
import re
import sys
import uuid

from zaqarclient.queues.v2 import client as zaqarclient

address, project = sys.argv[1], str(uuid.uuid4())

# --- python-zaqarclient ---

conf = {'auth_opts': {'backend': 'noauth', 'options': {'os_project_id': project}}}
producer = zaqarclient.Client('http://' + address, conf=conf).queue('mail', force_create=True)
worker = zaqarclient.Client('http://' + address, conf=conf).queue('mail')

producer.metadata({'_max_claim_count': 5, 'color': 'red'})
assert producer.metadata(force_reload=True)['color'] == 'red'
assert producer.exists and producer.name == 'mail'

bodies = [{'to': name} for name in ('ann', 'bob', 'cyd', 'dan', 'eve')]
producer.post([{'body': body, 'ttl': 3600} for body in bodies])
assert not list(producer.messages())        # without those of one's own
assert [m.body for m in worker.messages()] == bodies
assert producer.stats['messages']['free'] == 5

claim = worker.claim(ttl=300, grace=60, limit=2)
messages = list(claim)
assert [m.body for m in messages] == bodies[:2]
assert worker.stats['messages']['claimed'] == 2
claim.update(ttl=600, grace=60)
assert worker.claim(id=claim.id).ttl == 600
messages[0].delete()
claim.delete()
assert [m.body for m in worker.messages()] == bodies[1:]
assert [m.body for m in worker.pop(count=3)] == bodies[1:4]

producer.delete()
assert not list(worker.messages())

# --- HTTP ---

headers = {'Client-ID': str(uuid.uuid4()), 'X-Project-ID': project,
           'Content-Type': 'application/json'}
connection = http.client.HTTPConnection(address)


def request(method, path, body=None):
    connection.request(method, path, body and json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read()
    return answer.status, answer.headers['Location'], json.loads(text) if text else None


queue = '/v2/queues/demo'
claims = queue + '/claims'
assert request('PUT', queue) == (201, queue, None)
assert request('PUT', queue) == (204, queue, None)
assert request('POST', claims, {'ttl': 300, 'grace': 60})[0] == 204     # nothing is free

posts = {'messages': [{'ttl': 300, 'body': {'event': n}} for n in range(3)]}
status, location, document = request('POST', queue + '/messages', posts)
assert status == 201 and re.fullmatch(queue + r'/messages\?ids=\d+,\d+,\d+', location)
assert len(document['resources']) == 3

status, claim, document = request('POST', claims + '?limit=2', {'ttl': 300, 'grace': 60})
assert status == 201 and claim.startswith(claims + '/')
first, second = document['messages']
assert first['href'] == '%s/messages/%s?claim_id=%s' % (
    queue, first['id'], claim.rpartition('/')[2])
assert first['body'] == {'event': 0} and first['ttl'] == 360

status, _, document = request('GET', claim)
assert status == 200 and document['ttl'] == 300 and len(document['messages']) == 2
assert request('PATCH', claim, {'ttl': 400, 'grace': 60})[0] == 204

# php-opencloud sends a grace of 0, and version 1 makes that of one that is missing.
assert request('PATCH', claim, {'ttl': 600, 'grace': 90})[0] == 204
assert request('PATCH', claim, {'ttl': 700, 'grace': 0})[0] == 204
assert request('GET', claim)[2]['messages'][0]['ttl'] >= 790
assert request('PATCH', claim.replace('v2', 'v1', 1), {'ttl': 800})[0] == 204
assert request('GET', claim)[2]['messages'][0]['ttl'] >= 890
assert request('PATCH', claim, {'ttl': 700, 'grace': 50000})[0] == 400
assert request('DELETE', first['href'].partition('?')[0])[0] == 403     # without the claim
assert request('DELETE', first['href'])[0] == 204
assert request('DELETE', first['href'])[0] == 204                       # again
assert request('DELETE', claim)[0] == 204
assert request('GET', claim)[0] == 404
assert request('PATCH', claim, {'ttl': 400, 'grace': 60})[0] == 404
assert request('DELETE', second['href'])[0] == 400                      # the claim has ended

assert request('POST', queue + '/purge', {'resource_types': ['messages']})[0] == 204
assert request('GET', queue + '/stats')[2] == {'messages': {'claimed': 0, 'free': 0, 'total': 0}}

# what no retry mends is 400
post = {'messages': [{'ttl': 300, 'body': 'a NUL: \0'}]}
assert request('POST', queue + '/messages', post)[0] == 400
assert request('GET', '/v2/queues?name=%00')[0] == 400
assert request('GET', claims + '/%00')[0] == 404

# php-opencloud's life of a claim, in each version
assert request('POST', queue + '/messages', {'messages': [{'ttl': 300, 'body': 1}]})[0] == 201
for version in 'v1', 'v1.1', 'v2':
    path = claims.replace('v2', version, 1)
    status, claim, document = request('POST', path + '?limit=5', {'ttl': 300, 'grace': 300})
    assert status == 201 and claim.startswith(path + '/')
    assert request('GET', claim)[0] == 200
    assert request('PATCH', claim, {'ttl': 400, 'grace': 0})[0] == 204
    if version == 'v1':
        assert request('PATCH', claim, {'ttl': 400})[0] == 204
    document = request('GET', claim)[2]
    assert document['ttl'] == 400 and document['messages'][0]['ttl'] >= 690
    assert request('DELETE', claim)[0] == 204
    assert request('DELETE', claim)[0] == 204   # there is none
    assert request('GET', claim)[0] == 404
    assert request('DELETE', path + '/malformed')[0] == 204
    status, claim, document = request('POST', path + '?limit=5', {'ttl': 300, 'grace': 300})
    assert status == 201
    message = (document if version == 'v1' else document['messages'])[0]
    assert request('DELETE', message['href'])[0] == 204
    assert request('DELETE', claim)[0] == 204
    assert request('POST', queue + '/messages', {'messages': [{'ttl': 300, 'body': 1}]})[0] == 201
assert request('POST', queue + '/purge', {'resource_types': ['messages']})[0] == 204

[message] = request('POST', queue + '/messages', {'messages': [{'body': 1}]})[2]['resources']
assert request('GET', message)[0] == 200
headers['X-Project-ID'] = 'other'
assert request('GET', message)[0] == 404        # of another project
print('ok')
